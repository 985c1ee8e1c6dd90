"""Certificates of native servers, and those servers in processes that fork."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cachelb._core import fork_gate

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: fork_gate("before"),
        after_in_parent=lambda: fork_gate("parent"),
        after_in_child=lambda: fork_gate("child"),
    )


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of a service, read anew whenever it is used.

    Example:
        >>> Certificate("tls.crt", "tls.key", min_version="1.3").min_version
        '1.3'
    """

    cert_path: str | os.PathLike[str]
    """PEM file with the chain, the service's own certificate first."""

    key_path: str | os.PathLike[str]
    """PEM file with its key."""

    client_ca_path: str | os.PathLike[str] | None = None
    """PEM file with the authorities of clients' certificates; None requires no certificates of clients."""

    min_version: Literal["1.2", "1.3"] = "1.2"
    """The lowest version of TLS that is spoken."""

    def read(self) -> tuple[bytes, bytes, bytes | None, str]:
        """Read the files: chain, key, the clients' CA, and the version.

        Raises:
            OSError: A file cannot be read.
        """
        chain, key = (_read(path) for path in (self.cert_path, self.key_path))
        return chain, key, None if self.client_ca_path is None else _read(self.client_ca_path), self.min_version


def _read(path: str | os.PathLike[str]) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(1 << 20)
