"""Decision records as JSON Lines: the pick, its reason, and the tokens the engine had cached. Never a prompt.

Example:
    >>> import tempfile, cachelb
    >>> from pathlib import Path
    >>> from cachelb.records import JsonlRecords, read_records
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "decisions.jsonl"
    ...     with cachelb.Router(["gpu0"]) as router:
    ...         router.attach(JsonlRecords(path))
    ...         router.select_worker(tokens=range(100)).on_complete(cached_tokens=0)
    ...     [row.prompt_tokens for row in read_records(path).decisions()]
    [100]
"""

from __future__ import annotations

from cachelb.records.capture import Capture, CaptureStats
from cachelb.records.jsonl import JsonlRecords, RecordsStats
from cachelb.records.reader import BadLine, RecordFiles, read_records
from cachelb.records.schema import VERSION

__all__ = [
    "VERSION",
    "BadLine",
    "Capture",
    "CaptureStats",
    "JsonlRecords",
    "RecordFiles",
    "RecordsStats",
    "read_records",
]
