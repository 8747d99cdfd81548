"""Messages and codecs: what goes in comes out; what is damaged is refused."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from partita.nouns.offload import OffloadJob, OffloadLink, OffloadProblem, OffloadTask
from partita.offload.run.codec import Codec, CodecCost, decode, encode, measure_codec, priced
from partita.offload.run.wire import WireError, message_bytes, pack, unpack

TENSORS = arrays.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.int8, np.bool_]),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)


@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), TENSORS, max_size=3))
@settings(max_examples=60, deadline=None)
def test_a_message_comes_out_as_it_went_in(tensors: dict[str, Any]) -> None:
    raw = pack({"job": 3, "name": "ü"}, tensors)
    head, found = unpack(raw)
    assert head == {"job": 3, "name": "ü"}
    assert set(found) == set(tensors)
    for name, t in tensors.items():
        assert found[name].dtype == t.dtype
        assert found[name].shape == t.shape
        np.testing.assert_array_equal(found[name], t)
    assert len(raw) <= message_bytes(tensors)


def test_a_transposed_tensor_travels_as_it_looks() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T
    np.testing.assert_array_equal(unpack(pack({}, {"x": x}))[1]["x"], x)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_noise_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        unpack(raw)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_message_is_refused_or_read_whole(data: st.DataObject) -> None:
    """Any byte changed or the end cut off: an error of one kind, or tensors whose sizes fit their shapes."""
    raw = bytearray(pack({"kind": "job"}, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        _, tensors = unpack(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    except WireError:
        return
    assert all(t.nbytes == t.size * t.itemsize <= 24 for t in tensors.values())


def test_a_head_that_is_no_object_is_refused() -> None:
    from safetensors.numpy import save

    with pytest.raises(WireError, match="head"):
        unpack(save({}, {"partita": "[1]"}))


@pytest.mark.parametrize("codec", get_args(Codec))
@given(arrays.arrays(np.float32, arrays.array_shapes(max_dims=3, max_side=20), elements=st.floats(-1e6, 1e6, width=32)))
@settings(max_examples=40, deadline=None)
def test_a_codec_gives_back_what_it_promises(codec: Codec, x: Any) -> None:
    coding, sent = encode({"x": x, "n": np.arange(3)}, codec)
    back = decode(coding, sent, 1 << 30)
    assert back["x"].shape == x.shape
    assert back["x"].dtype == np.float32
    np.testing.assert_array_equal(back["n"], np.arange(3))
    if codec == "int8":
        step = (float(x.max()) - float(x.min())) / 255
        assert float(np.abs(back["x"] - x).max()) <= 0.51 * step + 1e-6 * float(np.abs(x).max())
    else:
        np.testing.assert_array_equal(back["x"], x)


def test_sparse_activations_get_smaller_and_noise_never_larger() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(64, 100)).astype(np.float32)
    relu = np.maximum(noise - 1, 0)
    cost = measure_codec("lossless", {"x": relu})
    assert cost.ratio < 0.5
    assert cost.encode_s_per_byte > 0
    assert measure_codec("lossless", {"x": noise}).ratio <= 1
    assert measure_codec("int8", {"x": noise}).ratio == 0.25
    assert measure_codec("raw", {"x": noise}).ratio == 1


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    coding, sent = encode({"x": np.zeros((1000, 1000), np.float32)}, "lossless")
    assert sent["x"].nbytes < 40_000
    with pytest.raises(WireError, match="'x'"):
        decode(coding, sent, 1_000_000)
    smaller = {"x": {**coding["x"], "shape": [10, 10]}}  # says less than it unpacks to
    with pytest.raises(WireError, match="'x'"):
        decode(smaller, sent, 1_000_000)


@pytest.mark.parametrize(
    "how", [{}, {"codec": "rar", "shape": [1]}, {"codec": "int8", "shape": [-1]}, {"codec": "int8", "shape": [9]}, 3]
)
def test_a_wrong_coding_is_refused(how: Any) -> None:
    with pytest.raises(WireError):
        decode({"x": how}, {"x": np.zeros(1, np.uint8)}, 1 << 20)


def test_priced_by_hand() -> None:
    job = OffloadJob("j", 100.0, (OffloadTask("a", 1, 1, 40.0), OffloadTask("b", 1, 1, 8.0, ("a",))))
    problem = OffloadProblem(OffloadLink(10.0, 10.0), (job,))
    coded = priced(problem, CodecCost(0.5, 0.01, 0.02))
    assert (coded.link.send_s_per_byte, coded.link.receive_s_per_byte) == pytest.approx((0.02, 0.04))  # of a byte sent
    assert coded.jobs[0].input_bytes == pytest.approx(50.0)
    assert [t.output_bytes for t in coded.jobs[0].tasks] == pytest.approx([20.0, 8.0])
