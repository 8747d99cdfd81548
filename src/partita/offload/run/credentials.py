"""Who may come in: plain on loopback, TLS with a pinned certificate and a token everywhere else."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from partita.errors import BadInput
from partita.files import read_bytes, read_text

NAME = "partita-offload"  #: the name in a certificate made here, whatever the host is called
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,253}")
_TOKEN_BYTES = 32
_OPENSSL_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ServerCredentials:
    """What a server shows and asks for: certificate and key in PEM (None: plain text), token ("": none asked for)."""

    token: str = ""
    certificate: bytes | None = None
    key: bytes | None = None

    def accept(self, given: str) -> bool:
        """Whether a client that says `given` may come in; takes as long for a token that is nearly right."""
        return not self.token or hmac.compare_digest(self.token.encode(), given.encode())

    def for_grpc(self) -> grpc.ServerCredentials | None:
        if self.certificate is None or self.key is None:
            return None
        return grpc.ssl_server_credentials([(self.key, self.certificate)])


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(address: str) -> tuple[str, int]:
    """Host and port. Raises BadInput.

    >>> split_address("[::1]:7070")
    ('[::1]', 7070)
    """
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise BadInput(f"{address!r} is no address", hint="write HOST:PORT, e.g. 127.0.0.1:7070")
    if ":" in host and not host.startswith("["):
        raise BadInput(f"{address!r} is no address", hint=f"write IPv6 hosts in brackets: [{host}]:{port}")
    return host, int(port)


def read_token(path: str | Path | None) -> str:
    """The token in a file, "" without one. Raises BadInput where the file is missing or empty."""
    if path is None:
        return ""
    token = read_text(path, BadInput).strip()
    if not token or not token.isascii() or not token.isprintable():
        raise BadInput(f"{path} holds no token", hint="give the file that partita offload serve wrote")
    return token


def server_credentials(
    host: str, *, insecure: bool, folder: Path, cert: str | None, key: str | None, token_file: str | None
) -> ServerCredentials:
    """What a server that listens on `host` shows and asks for.

    Loopback or `insecure`: what was given, else nothing. Anywhere else: TLS and a token, made in `folder` at first use.
    Raises BadInput where a certificate is needed and can neither be read nor made.
    """
    if (cert is None) != (key is None):
        raise BadInput("a certificate needs its key", hint="give both --cert and --key")
    token = read_token(token_file)
    if cert and key:
        pair = read_bytes(cert, BadInput), read_bytes(key, BadInput)
    elif insecure or is_loopback(host):
        return ServerCredentials(token)
    else:
        pair = _own_certificate(folder)
    if not (token or insecure or is_loopback(host)):
        token = _own_token(folder)
    return ServerCredentials(token, *pair)


def _own_token(folder: Path) -> str:
    path = folder / "token"
    if not path.exists():
        _write_secret(path, secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
    return read_token(path)


def _own_certificate(folder: Path) -> tuple[bytes, bytes]:
    """A self-signed certificate and its key; made at first use by the openssl command."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    if not (cert.exists() and key.exists()):
        _make_certificate(folder, cert, key)
    return read_bytes(cert, BadInput), read_bytes(key, BadInput)


def _make_certificate(folder: Path, cert: Path, key: Path) -> None:
    tool = shutil.which("openssl")
    if tool is None:
        raise BadInput(
            "a server beyond loopback needs a certificate, and there is no openssl command to make one",
            hint="give --cert and --key, or listen on 127.0.0.1",
        )
    _write_secret(key, "")
    words = [
        tool, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650",
        "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", str(key), "-out", str(cert),
    ]  # fmt: skip
    made = subprocess.run(words, capture_output=True, text=True, timeout=_OPENSSL_SECONDS, stdin=subprocess.DEVNULL)
    if made.returncode:
        key.unlink(missing_ok=True)
        raise BadInput(
            f"openssl made no certificate: {made.stderr.strip().splitlines()[-1:]}", hint="give --cert and --key"
        )


def _write_secret(path: Path, text: str) -> None:
    """A new file that only its owner reads. Raises BadInput where it cannot be made."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"{path} cannot be made: {error.strerror}", hint="name another folder with --keys") from error


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """What a client comes with: a token, the server's certificate or its authority's in PEM (None: plain text), and the
    name that the server's certificate must have."""

    token: str = ""
    ca: bytes | None = None
    server_name: str = NAME

    @staticmethod
    def of(
        host: str, *, insecure: bool, ca: str | None, token_file: str | None, server_name: str | None = None
    ) -> ClientCredentials:
        """Raises BadInput where a server beyond loopback is to be called in plain text without saying so."""
        if server_name is not None and not (ca and _NAME.fullmatch(server_name)):
            raise BadInput(
                f"--server-name {server_name!r} {'is no host name' if ca else 'needs --ca'}",
                hint="give --ca with the certificate's authority, and a name that the certificate has",
            )
        if ca is None and not (insecure or is_loopback(host)):
            raise BadInput(
                f"{host} is beyond loopback and no certificate is given",
                hint="give --ca cert.pem and --token-file token of that server, or --insecure on a network of your own",
            )
        return ClientCredentials(read_token(token_file), read_bytes(ca, BadInput) if ca else None, server_name or NAME)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def channel(self, target: str, options: tuple[tuple[str, int | str], ...]) -> grpc.Channel:
        if self.ca is None:
            return grpc.insecure_channel(target, options)
        named = (*options, ("grpc.ssl_target_name_override", self.server_name))
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(self.ca), named)


def credentials_of(flags: Any) -> ClientCredentials:
    """What the flags of a verb that calls a server say: server, insecure, ca, token_file, server_name. Raises BadInput."""
    host, _ = split_address(flags.server)
    return ClientCredentials.of(
        host, insecure=flags.insecure, ca=flags.ca, token_file=flags.token_file, server_name=flags.server_name
    )
