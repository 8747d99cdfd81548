"""Files as an attacker or a failing disk would leave them, and the table of everything that reads a file from outside.

A reader joins the contract (`test_hostile_files`) with a row in READERS: a sound file, and what is done with one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from dataflow.flow_record import small_record
from offload.report.sample_offload import make_problem
from pipeline.report.sample_run import make_plan, make_story
from small_worlds import VERDICT, given_costs, placed, training_chain
from spark.plan.shop_brute import layered
from spark.small_logs import gated, two_stages, written

from partita.cli.compile_kernels import tiny_traces
from partita.cli.flow.resume import asked
from partita.dataflow.report.page import page as flow_page
from partita.dataflow.report.story import read_run
from partita.dataflow.store.format import read_result, write_result
from partita.errors import BadInput
from partita.files import read_json, read_toml, write_whole
from partita.mapping.plan.surrogates import Score
from partita.mapping.report.history import End, Following, History, Row
from partita.mapping.report.history import text as history_text
from partita.mapping.report.page import search_section
from partita.models.capture.roles import read_roles
from partita.models.capture.table import Table
from partita.models.measure.file import Campaign
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import TaskGraph
from partita.nouns.offload import OffloadProblem
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import OffloadFile, PlanFile
from partita.nouns.probe import Probe, ProbePiece, Readings
from partita.nouns.profile import Profile, Sample
from partita.nouns.program import Program
from partita.nouns.splits import Split
from partita.nouns.timeline import Timeline
from partita.offload.plan.planner import plan_offload
from partita.page.agreement import agreement, as_text
from partita.page.plan_rows import stage_rows
from partita.page.text import draw
from partita.pipeline.report.page import page
from partita.pipeline.report.story import Story, simulated
from partita.placement.capture.formats import read_problem
from partita.simulate.lower import lower
from partita.solve.evolution import Evolution
from partita.spark.capture.event_log import read_event_log
from partita.spark.capture.shop import capture
from partita.spark.capture.traces import read_queries
from partita.spark.plan.executors.episodes import Catalogue, run
from partita.spark.plan.learned.policy import LENGTHS, Policy
from partita.spark.plan.learned.train import Training
from partita.spark.plan.online.episodes import simulate_shop
from partita.spark.plan.planner import OBJECTIVES, plan_spark
from partita.spark.problem import ShopProblem
from partita.spark.report.gantt import measured, timeline
from partita.spark.schedule import ShopFile
from partita.testbed import state as beds

MOST_BYTES = 3 << 30  #: of memory beyond what the tests hold already: a file may not take more


@dataclass(frozen=True)
class Reader:
    """One kind of file."""

    suffix: str
    sound: Callable[[Path], bytes]  #: a sound file; the folder is for those that only write to one
    read: Callable[[Path], object]  #: reads it and does what comes next; may raise PartitaError and nothing else


# ---------------------------------------------------------------------------------------------------------- mutations

NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "0.5",
    "1e308",
    "-1e308",
    "1e-320",
    "1e999",
    "NaN",
    "Infinity",
    "nan",
    "inf",
    "1000000000",
    "9223372036854775807",
    "4294967296",
]
NUMBERS += ["9" * 30, "9" * 400, "9" * 5000, "1" + "0" * 18, "-9223372036854775809"]
WORDS = [
    "null",
    "true",
    '""',
    '"a"',
    '"\\ud800"',
    '"\\u0000"',
    "[]",
    "{}",
    "[[]]",
    '{"a": 1}',
    "[null]",
    '"' + "x" * 5000 + '"',
]
JUNK: tuple[Any, ...] = (None, True, -1, 0, 2.5, 1e308, 10**9, 10**18, 2**62, "", "a", "\0", "é🎻", [], {}, [[]], {"a": 1}, [None])  # fmt: skip
_TOKEN = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\"[^\"\n]*\"|[A-Za-z_]+")


def mutated(raw: bytes, dice: random.Random) -> bytes:
    """One to three faults: of bytes, of tokens, or (JSON) of structure."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        raw = dice.choice((_bytes, _tokens, _tokens, _structure, _structure, _structure))(raw, dice)
    return raw


def _bytes(raw: bytes, dice: random.Random) -> bytes:
    at, size = dice.randrange(len(raw) + 1), dice.choice((0, 1, 1, 4, 40, 400))
    other = dice.choice(
        (b"", bytes([dice.randrange(256)]), raw[:size], b"[" * 3000, b'{"a":' * 500, b"\xff\xfe", b"\0")
    )
    return raw[:at] if dice.random() < 0.1 else raw[:at] + other + raw[at + size :]


def _tokens(raw: bytes, dice: random.Random) -> bytes:
    found = list(_TOKEN.finditer(raw))
    if not found:
        return raw
    token = dice.choice(found)
    pool = [*NUMBERS, *WORDS] if dice.random() < 0.5 else NUMBERS
    new = dice.choice(found)[0] if dice.random() < 0.2 else dice.choice(pool).encode()
    return raw[: token.start()] + new + raw[token.end() :]


def _structure(raw: bytes, dice: random.Random) -> bytes:
    """One place of a JSON value replaced, removed, doubled or added to; of another text, a line."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        lines = raw.splitlines(keepends=True) or [b""]
        at = dice.randrange(len(lines))
        return b"".join(lines[:at] + lines[at : at + 1] * dice.choice((0, 2)) + lines[at + 1 :])
    inner, last = _place(value, dice)
    if inner is None:
        return raw
    how = dice.choice(("replace", "replace", "remove", "add"))
    if how == "replace":
        inner[last] = dice.choice(JUNK)
    elif how == "remove":
        del inner[last]
    elif isinstance(inner, list):
        inner.append(inner[last])
    else:
        inner["unheard of"] = dice.choice(JUNK)
    return json.dumps(value).encode()


def _place(value: Any, dice: random.Random) -> tuple[Any, Any]:
    """A random container in a JSON value, and a key of it; shallow ones as likely as deep ones."""
    inner, last = None, None
    while isinstance(value, dict | list) and value:
        inner, last = value, dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
        if dice.random() < 0.15:
            break
        value = value[last]
    return inner, last


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Let this process have MOST_BYTES more memory and no more, so that a greedy reader fails instead of the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# ------------------------------------------------------------------------------------------------- ground floor, pages


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _cluster(_: Path) -> bytes:
    return b"""source = "given"

[[device]]
name = "cpu0"
memory_bytes = 8e9
cores = [0]

[[device]]
name = "gpu0"
kind = "gpu"
speed = 2.0

[link]
rate_bytes_per_s = 1e9
latency_s = 6e-5

[[links]]
source = "cpu0"
target = "gpu0"
rate_bytes_per_s = 1e8
latency_s = 1e-3
medium = "bus"
fair = true
"""


def _read_graph(path: Path) -> object:
    graph = TaskGraph.from_json(read_json(path, BadInput), str(path))
    return graph.fingerprint, graph.order, graph.to_json()


def _read_cluster(path: Path) -> object:
    cluster = Cluster.read(path)
    return cluster.to_json(), [cluster.link(a.name, b.name) for a in cluster.devices[:9] for b in cluster.devices[:9]]


def _profile(_: Path) -> bytes:
    file = make_plan(2, 4, 4)
    parts = Split("layer", "batch", 2, "statistics", tuple(t.id for t in file.graph.tasks[:2]))
    sample = Sample(2, file.graph, file.costs, 0.5)
    return _json(Profile("job.py:make", 8, (sample,), file.cluster, 1.0, {}, splits=(parts,)).to_json())


def _read_program(path: Path) -> object:
    return Program.from_json(read_json(path, BadInput)).to_json()


def _program(_: Path) -> bytes:
    file = make_plan(2, 4, 4)
    return _json(lower(file.graph, file.cluster, file.plan).to_json())


def _placement_plan(folder: Path) -> bytes:
    graph, cluster = training_chain(2), Cluster.uniform(2, rate_bytes_per_s=1.0)
    where = ["cpu0", "cpu1", "cpu1", "cpu0"]
    problem = PlacementProblem(graph, cluster, given_costs(graph), np.ones(4))
    return (
        PlanFile(placed(graph, where), replace(VERDICT, objective="latency"), problem).write(folder / "p").read_bytes()
    )


def _read_plan(path: Path) -> object:
    file = PlanFile.read(path)
    timeline = simulated(file)
    return stage_rows(file), None if timeline is None else draw(timeline)


def _read_timeline(path: Path) -> object:
    timeline = Timeline.read(path)
    sound = simulated(make_plan(2, 4, 4))
    assert sound is not None
    json.dumps(timeline.to_perfetto())
    return draw(timeline), as_text(agreement(sound, timeline))


def _timeline(folder: Path) -> bytes:
    timeline = simulated(make_plan(2, 4, 4))
    assert timeline is not None
    return timeline.write(folder / "t").read_bytes()


def _read_costs(path: Path) -> object:
    graph = training_chain(3)
    return CostTable.from_json(read_json(path, BadInput), graph).to_json()


def _some_readings() -> Readings:
    piece_s = np.full((2, 6, 3), 1e-3)
    piece_s[0, ::2, 1:] = np.nan
    return Readings(("cpu0", "cpu1"), piece_s, np.full((2, 6), 0.9), np.full((2, 6), 0.1), 2)


def _read_readings(path: Path) -> object:
    readings = Readings.read(path)
    probe = Probe((ProbePiece(("a",), 1e-3),) * readings.piece_s.shape[2], 1)
    if probe.check():
        return None
    own = readings.only(readings.devices[:1])
    return readings.speeds(probe), readings.spread(probe), own.since(3).error(probe), readings.to_json()


def _probed_story() -> Story:
    """A run whose devices were read."""
    story = make_story(2, 4, layers=4)
    problem = story.plan.problem
    probe = Probe((ProbePiece((problem.graph.tasks[0].id,), 1e-3),) * 3, problem.micro_batch_size)
    return replace(story, plan=replace(story.plan, problem=replace(problem, probe=probe)), readings=_some_readings())


def _in_run(name: str) -> Reader:
    """A file of a run's folder, read with the others beside it, and made into a page."""

    def sound(folder: Path) -> bytes:
        return (_probed_story().write(folder / "run") / name).read_bytes()

    def read(path: Path) -> object:
        folder = path.parent / "run"
        if not (folder / "plan.json").exists():
            _probed_story().write(folder)
        try:
            before = (folder / name).read_bytes()
            (folder / name).write_bytes(path.read_bytes())
            return page(Story.read(folder)).encode()
        finally:
            (folder / name).write_bytes(before)

    return Reader(Path(name).suffix, sound, read)


def _bed(_: Path) -> bytes:
    hosts = [
        {"name": f"h{k}", "namespace": f"partita-x-h{k}", "address": f"10.77.3.{k + 1}", "rate_bit_per_s": 20_000_000}
        | {"cpu_percent": 25.0, "core": 0, "group": f"/sys/fs/cgroup/cpu/partita-x-h{k}"}
        for k in range(2)
    ]
    head = {"format": "partita-testbed", "version": 1, "name": "x", "subnet": 3, "switch": "partita-x-switch"}
    return _json({**head, "hosts": hosts, "owner": {"pid": 1, "started": 0}})


def _read_bed(path: Path) -> object:
    folder, beds.FOLDER = beds.FOLDER, path.parent
    try:
        state = beds.find(path.stem)
        return state is not None and (state.stale, [h.address for h in state.hosts])
    finally:
        beds.FOLDER = folder


GROUND = {
    "any JSON": Reader(".json", lambda _: _json({"a": [1, {"b": "c"}], "d": 2.5}), lambda p: read_json(p, BadInput)),
    "any TOML": Reader(".toml", lambda _: b'a = [1, 2.5]\n[t]\nb = "c"\nd = 2020-01-01\n', lambda p: read_toml(p, BadInput)),
    "graph": Reader(".json", lambda _: _json(training_chain(3, update=True).to_json()), _read_graph),
    "cluster": Reader(".toml", _cluster, _read_cluster),
    "costs": Reader(".json", lambda _: _json(given_costs(training_chain(3)).to_json()), _read_costs),
    "profile": Reader(".json", _profile, Profile.read),
    "program": Reader(".json", _program, _read_program),
    "plan of a pipeline": Reader(".json", lambda f: make_plan(2, 4, 4).write(f / "p").read_bytes(), _read_plan),
    "plan of a placement": Reader(".json", _placement_plan, _read_plan),
    "timeline": Reader(".json", _timeline, _read_timeline),
    "test bed": Reader(".json", _bed, _read_bed),
    "readings": Reader(".json", lambda _: _json(_some_readings().to_json()), _read_readings),
    **{f"run: {name}": _in_run(name) for name in ("plan.json", "predicted.json", "measured.json", "summary.json", "metrics.jsonl", "readings.json")},
}  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- wings

_DNN = {
    "maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1,
    "nodes": [{"id": str(k), "supportedOnFpga": 1, "cpuLatency": 9.0, "fpgaLatency": 1.0 + k, "size": 5.0, "colorClass": k // 2, "isBackwardNode": 0} for k in range(4)],
    "edges": [{"sourceId": str(k), "destId": str(k + 1), "cost": 0.5, "size": 10.0} for k in range(3)],
}  # fmt: skip
_PIPEDREAM = b"".join(
    b"node%d -- Layer%d -- forward_compute_time=%d.5, backward_compute_time=2.0, activation_size=%d.0, parameter_size=1.0\n" % (k, k, k, k)
    for k in range(4)
) + b"".join(b"\tnode%d -- node%d\n" % (k, k + 1) for k in range(3))  # fmt: skip
PLACEMENT = {
    "dnn-partitioning": Reader(".json", lambda _: _json(_DNN), read_problem),
    "PipeDream": Reader(".txt", lambda _: _PIPEDREAM, lambda p: read_problem(p, 3)),
}


def _offload_plan(folder: Path) -> bytes:
    problem = make_problem()
    plan_offload(problem, budget_s=0.1).write(folder / "p")
    return (folder / "p").read_bytes()


OFFLOAD = {
    "offload costs": Reader(".json", lambda _: _json(make_problem().to_json()), OffloadProblem.read),
    "offload plan": Reader(".json", _offload_plan, OffloadFile.read),
}


def _captured_run(path: Path) -> str:
    log = read_event_log(path)
    problem = capture(log).problem
    problem.check()
    return draw(measured(problem, log, "0"))


def _spark_plan(folder: Path) -> bytes:
    return plan_spark(ShopProblem.from_json(layered(5, 1)), "johnson").write(folder / "p").read_bytes()


def _planned(path: Path) -> object:
    return [plan_spark(ShopProblem.read(path), "search", budget_s=0.01, objective=o) for o in OBJECTIVES]


def _run_traces(path: Path) -> object:
    return run(Catalogue.of(read_queries(path)).jobs([0], np.zeros(1)), 3, "fair", 1)


def _spark_policy(folder: Path) -> bytes:
    return Policy(shop=np.arange(LENGTHS["shop"], dtype=np.float64) / 100).write(folder / "p").read_bytes()


def _serve_arrivals(path: Path) -> object:
    return simulate_shop(ShopProblem.from_json(layered(12, 1, 3)), "learned", weights=Policy.read(path))


def _spark_training(folder: Path) -> bytes:
    return (
        Training("shop", Evolution.at(np.zeros(LENGTHS["shop"]), np.ones(LENGTHS["shop"])))
        .write(folder / "p")
        .read_bytes()
    )


SPARK = {
    "spark policy": Reader(".safetensors", _spark_policy, _serve_arrivals),
    "spark training": Reader(".safetensors", _spark_training, lambda p: Training.read(p, "shop", 0)),
    "spark traces": Reader(".json", lambda _: _json(tiny_traces()), _run_traces),
    "spark problem": Reader(".json", lambda _: _json(layered(5, 1, 2)), _planned),
    "spark event log": Reader(
        "", lambda _: written(two_stages()), lambda p: capture(read_event_log(p)).problem.check()
    ),
    "spark event log of a run": Reader("", lambda _: written(gated()), _captured_run),
    "spark plan": Reader(".json", _spark_plan, lambda p: draw(timeline(ShopFile.read(p)))),
}

_TRIED = [Row(1, "seeds", "heft", 0.1, 0.2), Row(2, "genetic", "genetic", 0.1, 0.15, 0.14, 9, 2.5, 3, {"cpu0": 4})]
_ENDED = End(True, 9, 8, 2, 3.0, 3.0, 0.1, 0.2, 2.0, "genetic", 0.1, 0.15, 0.2, (Score("linear", 0.1, 0.1, 0.9, 0.01),))


def _searched(path: Path) -> object:
    """Either file of a search, with a sound one of the other kind."""
    folder = path.parent / "searched"
    folder.mkdir(exist_ok=True)
    tried = "".join(json.dumps(asdict(r)) + "\n" for r in _TRIED).encode()
    ended = _json(_ENDED.to_json())
    given = path.read_bytes()
    (folder / "search.jsonl").write_bytes(given if path.suffix == ".jsonl" else tried)
    (folder / "search.json").write_bytes(given if path.suffix == ".json" else ended)
    going_on = path.parent / "searching"
    going_on.mkdir(exist_ok=True)
    (going_on / "search.jsonl").write_bytes((folder / "search.jsonl").read_bytes())
    found = History.read(folder)
    return Following(going_on).line(), search_section(found), history_text(found.to_json())


MAPPING = {
    "search": Reader(".json", lambda _: _json(_ENDED.to_json()), _searched),
    "mappings tried": Reader(
        ".jsonl", lambda _: "".join(json.dumps(asdict(r)) + "\n" for r in _TRIED).encode(), _searched
    ),
}

_TABLE = "devices,batch,framework,time_s\n" + "".join(f"{d},{b},torch,{b / d}\n" for d in (1, 2, 4) for b in (8, 16))
_CAMPAIGN = """[campaign]
rows = 20
seed = 1
passes = 2
spread = 0.03
frameworks = ["torch"]
workers = [1, 2]

[network.mlp]
layers = [2, 4]
width = [64, 128]
batch = [16, 32]
input_size = [32]
activation = ["relu"]
optimizer = ["sgd", "adam"]
"""
MODELS = {
    "table": Reader(".csv", lambda _: _TABLE.encode(), Table.read),
    "campaign": Reader(".toml", lambda _: _CAMPAIGN.encode(), Campaign.read),
    "roles": Reader(
        ".toml",
        lambda _: b'[columns]\ndevices = "devices"\nframework = "kind"\n',
        lambda p: read_roles(p, Table({"devices": np.array([1.0, 2.0]), "framework": np.array(["a", "b"])})),
    ),
}

RESULT = {"a": np.arange(3.0), "b": (1, {2, 3}, b"x"), "c": [np.float32(1.0), "text"]}


def _result(_: Path) -> bytes:
    file = io.BytesIO()
    write_result(file, "k" * 40, RESULT, 1.0, "there are none here")
    return file.getvalue()


def _resealed(path: Path) -> object:
    """A result whose seal is right whatever is in it: who may write to the folder can seal."""
    raw = path.read_bytes()[:-32]
    return read_result(bytearray(raw + hashlib.sha256(raw).digest()), str(path), "there are none here").value


ASKED = {"format": "partita-flow", "version": 1, "flow": "a.py:flow", "workers": 2, "scheduler": None, "memory": "2GB", "stop_on_error": False, "no_check": False, "store": "10GB"}  # fmt: skip
FLOW = {
    "flow run": Reader(".json", lambda _: _json(small_record().to_json()), lambda p: flow_page(read_run(p)).encode()),
    "flow result": Reader("", _result, _resealed),
    "flow asked": Reader(".json", lambda _: _json(ASKED), lambda p: _json(asked(p))),
}

READERS: dict[str, Reader] = {**GROUND, **PLACEMENT, **OFFLOAD, **SPARK, **MAPPING, **MODELS, **FLOW}


def sound_file(name: str, folder: Path) -> Path:
    """A sound file of that kind."""
    reader = READERS[name]
    return write_whole(folder / f"sound{reader.suffix}", reader.sound(folder))
