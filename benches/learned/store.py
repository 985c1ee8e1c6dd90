"""Runs made so far, one line of JSON each, so that a stopped grid goes on where it was."""

from __future__ import annotations

import json
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class Store:
    """A file of runs by their keys.

    Args:
        path: The file; made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._runs: dict[str, dict[str, Any]] = {}
        for row in map(json.loads, rows):
            self._runs[row.pop("cell")] = row

    def __contains__(self, key: str) -> bool:
        return key in self._runs

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._runs[key]

    def add(self, key: str, run: dict[str, Any]) -> None:
        """Keep a run, in the file too."""
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            self._runs[key] = run
            file.write(json.dumps({"cell": key, **run}) + "\n")

    def forget(self, policies: list[str]) -> None:
        """Drop the runs of some policies, which have changed since."""
        gone = {f"/{policy}/" for policy in policies}
        self._runs = {key: run for key, run in self._runs.items() if not any(each in key for each in gone)}
        lines = (json.dumps({"cell": key, **run}) for key, run in self._runs.items())
        self.path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
