"""Workers listed in a file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final

from cachelb.common.arguments import seconds
from cachelb.common.extras import need
from cachelb_gateway.discovery.addresses import SCHEMES, DiscoveryError, target_url
from cachelb_gateway.discovery.base import PolledWorkers

_MOST_BYTES: Final = 8 * 1024 * 1024
_MOST_GROUPS: Final = 4096
_YAML: Final = (".yaml", ".yml")


class FileWorkers(PolledWorkers):
    """Registers the targets in a file of Prometheus' `file_sd` format, as it changes.

    The file is a JSON list of `{"targets": ["gpu0:8000"], "labels": {...}}`; of the labels, `__scheme__` is read. YAML,
    by the suffix `.yaml` or `.yml`, needs the extra `yaml`. Write a new file and rename it; one that is
    incomplete, missing or larger than 8 MiB counts as a failure, and the last workers stay.

    Args:
        path: The file.
        scheme: "http" or "https", of targets without the label.
        interval_s: Seconds between two looks at its time and size.
        drop_wait_s: Seconds that the loss of more than half of the workers waits to be confirmed.
        worker_options: Options of `Router.add_worker` for each new worker, such as `role`.

    Raises:
        ModuleNotFoundError: The file is YAML, and PyYAML is not installed.
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.

    Example:
        >>> import asyncio, json, pathlib, tempfile
        >>> from cachelb_gateway.discovery import FileWorkers
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "workers.json")
        ...     _ = path.write_text(json.dumps([{"targets": ["gpu0:8000", "gpu1:8000"]}]))
        ...     asyncio.run(FileWorkers(path).look())  # router.attach(FileWorkers(path)) starts it
        (['http://gpu0:8000', 'http://gpu1:8000'], 0.5)
    """

    most_backoff_s: ClassVar[float] = 0.5

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        scheme: str = "http",
        interval_s: float = 0.5,
        drop_wait_s: float = 10.0,
        worker_options: Mapping[str, Any] | None = None,
    ) -> None:
        found = os.fspath(path)
        if not isinstance(found, str):
            raise TypeError(f"path must be text or a path of text, got {type(found).__name__}")
        if not found or "\0" in found:
            raise ValueError(f"path must name a file, got {found!r}")
        if scheme not in SCHEMES:
            raise ValueError(f"scheme must be http or https, got {scheme!r}")
        self._is_yaml = found.lower().endswith(_YAML)
        if self._is_yaml:
            need("FileWorkers of a YAML file", "yaml")
        self._path = Path(found).absolute()  # the working directory may change
        self._scheme = scheme
        self._interval_s = seconds("interval_s", interval_s)
        self._latest: tuple[tuple[int, ...], list[str]] | None = None
        super().__init__(f"file:{found}", drop_wait_s=drop_wait_s, worker_options=worker_options)

    async def look(self) -> tuple[list[str], float]:
        """Read the file if it has changed.

        Returns:
            The workers in it, and the seconds until the next look.

        Raises:
            DiscoveryError: Its content cannot be used.
            OSError: It cannot be read.
        """
        return await asyncio.to_thread(self._read), self._interval_s

    def _read(self) -> list[str]:
        stat = self._path.stat()
        state = (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev)
        if self._latest is not None and self._latest[0] == state:
            return self._latest[1]
        self._latest = None
        if not self._path.is_file():  # a pipe would block
            raise DiscoveryError("not a file")
        with self._path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise DiscoveryError(f"larger than {_MOST_BYTES} bytes")
        workers = _targets(_yaml(content) if self._is_yaml else _json(content), self._scheme)
        self._latest = (state, workers)
        return workers


def _json(content: bytes) -> object:
    try:
        found: object = json.loads(content)
    except (ValueError, RecursionError):
        raise DiscoveryError("not JSON") from None
    return found


def _yaml(content: bytes) -> object:
    import yaml

    try:
        found: object = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError):
        raise DiscoveryError("not YAML") from None
    return found


def _targets(groups: object, scheme: str) -> list[str]:
    """Return the workers of all groups, each once, in their order."""
    if not isinstance(groups, list) or len(groups) > _MOST_GROUPS:
        raise DiscoveryError(f"not a list of {_MOST_GROUPS} groups at most")
    workers: dict[str, None] = {}
    for group in groups:
        if not isinstance(group, Mapping):
            raise DiscoveryError('a group is {"targets": [...], "labels": {...}}')
        targets, labels = group.get("targets"), group.get("labels")
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise DiscoveryError("targets must be a list of host:port")
        if not isinstance(labels, Mapping | None):
            raise DiscoveryError("labels must be a table")
        named = (labels or {}).get("__scheme__", scheme)
        if not isinstance(named, str):
            raise DiscoveryError("the label __scheme__ must be text")
        workers.update((target_url(named, target), None) for target in targets)
    return list(workers)
