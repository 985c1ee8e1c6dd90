"""The gateways, as the process that started them sees them."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from benches.soak.gateway import Report, Spec, run

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

PATIENCE_S = 120.0
"""How long an answer may take on a busy machine; nothing is measured by it."""


class Gateway:
    """One gateway; ends with the `with` block.

    Attributes:
        url: Its address, the same for all its lives.
        taken: Whether clients are sent to it.
        lives: How often it was started.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.taken = False
        self.lives = 0
        self.url = ""
        self._process: BaseProcess | None = None
        self._connection: Any = None
        self._asking = threading.Lock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.taken = False
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        spawning = multiprocessing.get_context("spawn")
        self._connection, theirs = spawning.Pipe()
        self._process = spawning.Process(target=run, args=(theirs, self.spec), name=self.spec.kind, daemon=True)
        self._process.start()
        theirs.close()
        port = self._answer()
        self.spec = replace(self.spec, port=port)
        self.url = f"http://127.0.0.1:{port}"
        self.lives += 1
        self.taken = True

    def stop(self) -> None:
        """Ask it to end, as a service manager does, and wait until it has.

        Raises:
            RuntimeError: It failed.
        """
        assert self._process is not None
        self._process.terminate()
        self._process.join(PATIENCE_S)
        code = self._process.exitcode
        self._process.kill()
        self._process.join()
        self._process = None
        if code not in {0, -signal.SIGTERM}:
            raise RuntimeError(f"{self.spec.kind} ended with {code} after SIGTERM")

    def report(self, *, thorough: bool = False) -> Report:
        """Ask how it goes.

        Args:
            thorough: It collects garbage and recounts everything first.
        """
        with self._asking:
            self._connection.send(thorough)
            found = self._answer()
        assert isinstance(found, Report)
        return found

    def _answer(self) -> Any:  # noqa: ANN401 - a port or a report
        assert self._connection.poll(PATIENCE_S), f"{self.spec.kind} does not answer"
        return self._connection.recv()
