"""A real Redis or Valkey server, started by the tests that need one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.ports import free_ports

FETCHED = Path(__file__).resolve().parents[3] / "target" / "redis"
"""Where `make redis` puts one."""


def program() -> tuple[str, dict[str, str]]:
    """The server and its environment. Without one a test fails."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found, dict(os.environ)
    fetched = FETCHED / "usr" / "bin" / "redis-server"
    if fetched.exists():
        folders = (str(path) for path in FETCHED.glob("**/*-linux-gnu") if path.is_dir())
        return str(fetched), {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}
    pytest.fail("no redis-server or valkey-server: install the package redis-server, or run `make redis`")


class RedisServer:
    """A server of its own on a free port of the loopback, without persistence unless the options set it."""

    def __init__(self, folder: Path, *options: str, password: str | None = None) -> None:
        self.folder = folder
        self.password = password
        self.port = free_ports(1)[0]
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0" if self.password is None else self.url_with(self.password)

    def url_with(self, password: str) -> str:
        return f"redis://:{password}@127.0.0.1:{self.port}/0"

    def start(self, *, wait: bool = True) -> None:
        command, environment = program()
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        if self.password is not None:
            options += ["--requirepass", self.password]
        words = [command, *options, *self.options]
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + 120
        while wait:
            assert self._process.poll() is None, (self.folder / "redis.log").read_text()
            assert time.monotonic() < deadline, "redis-server did not start"
            try:
                with self.client() as client:
                    client.ping()
            except redis.RedisError:
                time.sleep(0.02)
            else:
                return

    def client(self, database: int = 0) -> redis.Redis:
        """Connect, to send each command once: redis-py repeats those that take seconds."""
        once = Retry(NoBackoff(), 0)
        return redis.Redis(
            port=self.port, password=self.password, db=database, protocol=2, socket_timeout=120.0, retry=once
        )

    def kill(self) -> None:
        """End it at once, like a crash."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
