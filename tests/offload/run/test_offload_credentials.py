"""Who may come in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from offload.run.small_nets import served

from partita.errors import BadInput
from partita.offload.run.client import Client, Unreachable
from partita.offload.run.credentials import (
    ClientCredentials,
    ServerCredentials,
    is_loopback,
    server_credentials,
    split_address,
)


def lock(host: str, folder: Path, **more: object) -> ServerCredentials:
    settings: dict[str, object] = {"insecure": False, "cert": None, "key": None, "token_file": None, **more}
    return server_credentials(host, folder=folder, **settings)  # type: ignore[arg-type]


def test_loopback_is_plain_unless_asked(tmp_path: Path) -> None:
    assert lock("127.0.0.1", tmp_path) == ServerCredentials()
    (tmp_path / "token").write_text("abc\n")
    assert lock("localhost", tmp_path, token_file=str(tmp_path / "token")) == ServerCredentials("abc")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
def test_beyond_loopback_there_is_a_certificate_and_a_token_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    first = lock("0.0.0.0", folder)
    assert first.certificate is not None
    assert b"BEGIN CERTIFICATE" in first.certificate
    assert len(first.token) >= 32
    assert lock("0.0.0.0", folder) == first
    assert all((folder / name).stat().st_mode & 0o077 == 0 for name in ("key.pem", "token"))
    assert lock("0.0.0.0", folder, insecure=True) == ServerCredentials()


def test_without_openssl_it_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BadInput, match="--cert and --key"):
        lock("0.0.0.0", tmp_path / "keys")
    with pytest.raises(BadInput, match="both"):
        lock("127.0.0.1", tmp_path, cert="only.pem")


def test_tokens() -> None:
    assert ServerCredentials("abc").accept("abc")
    assert not ServerCredentials("abc").accept("abd")
    assert not ServerCredentials("abc").accept("")
    assert not ServerCredentials("abc").accept("äöü")
    assert ServerCredentials().accept("whatever")


def test_an_empty_token_file_is_no_open_door(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(BadInput, match="holds no token"):
        lock("127.0.0.1", tmp_path, token_file=str(tmp_path / "token"))


def test_a_client_never_calls_far_hosts_in_plain_text_by_accident() -> None:
    with pytest.raises(BadInput, match="beyond loopback"):
        ClientCredentials.of("10.0.0.1", insecure=False, ca=None, token_file=None)
    assert ClientCredentials.of("10.0.0.1", insecure=True, ca=None, token_file=None) == ClientCredentials()
    assert ClientCredentials.of("127.0.0.1", insecure=False, ca=None, token_file=None) == ClientCredentials()


def test_a_server_name_needs_a_certificate_and_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-")
    given = {"insecure": True, "token_file": None}
    assert (
        ClientCredentials.of("10.0.0.1", ca=str(tmp_path / "ca.pem"), server_name="a.org", **given).server_name
        == "a.org"
    )  # type: ignore[arg-type]
    for ca, name in ((None, "a.org"), (str(tmp_path / "ca.pem"), ""), (str(tmp_path / "ca.pem"), "\ud800 x")):
        with pytest.raises(BadInput, match="--server-name"):
            ClientCredentials.of("10.0.0.1", ca=ca, server_name=name, **given)  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
def test_a_certificate_of_ones_own_by_ones_own_authority(tmp_path: Path) -> None:
    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=tmp_path, check=True, capture_output=True)

    new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    openssl(f"req -x509 {new} -subj /CN=authority -keyout ca.key -out ca.pem")
    openssl(f"req {new} -subj /CN=models.example.org -keyout own.key -out own.csr")
    (tmp_path / "names").write_text("subjectAltName=DNS:models.example.org")
    openssl("x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out own.pem")
    flags = ["--cert", str(tmp_path / "own.pem"), "--key", str(tmp_path / "own.key")]
    with served(tmp_path, *flags) as (where, _):
        ca = (tmp_path / "ca.pem").read_bytes()
        with Client(where, ClientCredentials(ca=ca, server_name="models.example.org")) as client:
            client.hello()
        with Client(where, ClientCredentials(ca=ca)) as client, pytest.raises(Unreachable, match="--server-name"):
            client.hello(3.0)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:70000", "::1:80"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(BadInput, match="address"):
        split_address(address)


def test_addresses() -> None:
    assert split_address("example.org:80") == ("example.org", 80)
    assert [is_loopback(h) for h in ("127.0.0.5", "[::1]", "10.0.0.1", "example.org")] == [True, True, False, False]


def test_a_folder_of_keys_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot be made: .*--keys"):
        lock("0.0.0.0", tmp_path / "file")
