"""Finished runs in one file of JSON Lines: a stopped league resumes, a new policy adds its runs."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachelb_lab.sim.league.figures import Figures, check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_HEADER = {"format": "cachelb-league", "version": 1}


class Store:
    """Finished runs and capacities by key, in a file or in memory.

    Each is one line, written whole. Lines have no clock reading, so equal leagues write equal bytes. A last line
    without its end is what a process left that was killed: it is dropped when the file is opened.

    Args:
        path: The file, made where it is missing; None keeps all in memory.

    Raises:
        ValueError: The file is another one, of another version, or a line in it is damaged.
        OSError: It cannot be read or written.

    Example:
        >>> store = Store()
        >>> store.add("capacity", "k1", {"speed": 2.5})
        >>> store.get("capacity", "k1"), store.get("capacity", "k2")
        ({'speed': 2.5}, None)
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        if self._path is not None:
            self._load(self._path)

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return a stored value.

        Args:
            kind: ``run`` or ``capacity``.
            key: Its digest.

        Returns:
            JSON values, or None.
        """
        return self._rows.get((kind, key))

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return all of a kind.

        Args:
            kind: ``run`` or ``capacity``.

        Returns:
            In the order of the file.
        """
        with self._lock:
            return [row for (of, _), row in self._rows.items() if of == kind]

    def add(self, kind: str, key: str, row: Mapping[str, Any]) -> None:
        """Store a value, in place of the previous one of the key.

        Args:
            kind: ``run`` or ``capacity``.
            key: Its digest.
            row: JSON values.

        Raises:
            OSError: The file cannot be written.
        """
        with self._lock:
            self._rows[kind, key] = dict(row)
            if self._path is not None:
                _append(self._path, [_line(kind, key, row)])

    def add_import(self, cell: str, policy: str, figures: Figures, *, source: str, **facts: object) -> None:
        """Store a run that was made elsewhere, such as by the router of another project on equal engines.

        Args:
            cell: Key of the cell, as lines of the store have it.
            policy: Its name in tables.
            figures: Its figures; missing ones are left out.
            source: Its source.
            **facts: Further JSON values, such as those of `Cell.facts`.

        Raises:
            ValueError: It has a figure that leagues do not have.
            OSError: The file cannot be written.

        Example:
            >>> store = Store()
            >>> store.add_import("c1", "dynamo", {"ttft_mean_s": 0.9}, source="Dynamo 1.6.1, kv_router")
            >>> [row["policy"] for row in store.rows("run")]
            ['dynamo']
        """
        row = {**facts, "cell": cell, "policy": policy, "source": source, "figures": check(figures)}
        self.add("run", f"{cell}/{policy}", row)

    def forget(self, policies: Iterable[str]) -> None:
        """Drop the runs of policies that have changed since.

        Args:
            policies: As lines have them.

        Raises:
            OSError: The file cannot be written.
        """
        gone = set(policies)
        with self._lock:
            self._rows = {key: row for key, row in self._rows.items() if row.get("policy") not in gone}
            if self._path is not None:
                new = self._path.with_name(self._path.name + ".new")
                new.unlink(missing_ok=True)
                lines = [_line(kind, key, row) for (kind, key), row in self._rows.items()]
                _append(new, [json.dumps(_HEADER), *lines])
                new.replace(self._path)

    def _load(self, path: Path) -> None:
        """Read the file, or begin one."""
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.splitlines()
        header = _parsed(lines[0] if lines else text)
        known = isinstance(header, dict) and header.get("format") == _HEADER["format"]
        if text and not known and (lines or not json.dumps(_HEADER).encode().startswith(text)):
            raise ValueError(
                f"{path} is not a file of league runs; give another one, which is made where it is missing"
            )
        if known and header["version"] != _HEADER["version"]:
            raise ValueError(
                f"{path} has version {header['version']} of league runs, this cachelb reads {_HEADER['version']}; "
                "give another file"
            )
        for number, line in enumerate(lines[1:], start=2):
            row = _parsed(line)
            keys = [row.get(name) for name in ("kind", "key")] if isinstance(row, dict) else []
            if not keys or not all(isinstance(key, str) for key in keys):
                raise ValueError(f"{path}:{number}: damaged; delete that line, its run is made again")
            self._rows[row.pop("kind"), row.pop("key")] = row
        if len(whole) < len(text):
            os.truncate(path, len(whole))
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            _append(path, [json.dumps(_HEADER)])


def _append(path: Path, lines: Iterable[str]) -> None:
    """Write lines at the end of a file, in one piece."""
    with path.open("ab", buffering=0) as file:
        file.write("".join(line + "\n" for line in lines).encode())


def _line(kind: str, key: str, row: Mapping[str, Any]) -> str:
    return json.dumps({"kind": kind, "key": key, **row}, allow_nan=False)


def _parsed(line: bytes) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(line)
    except ValueError:
        return None
