"""The lines of a record file.

Every line is one JSON object with the fields `v`, the version of this schema, and `kind`:

- `"decision"`: a finished request, with the attributes of `cachelb.types.DecisionRecord` under their names. `shadows`
  is a list of objects with the attributes of `cachelb.types.ShadowPick`.
- `"lost"`: `records` finished requests up to `time_s` are missing here, because they came faster than they could be
  read, or because the file could not be written.
- `"capture"` and `"end"`: the first and the last line of a capture (`cachelb.records.capture`), whose decisions have
  one field more.

A reader passes over fields it does not know, and takes those that older versions did not write for None; a change that
such a reader would misunderstand gets another version.
Nothing of a prompt, a session, a salt or an adapter is in a record, so none is in a file.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any

from cachelb.types import DecisionRecord, ShadowPick

VERSION = 1
"""Version of the schema, the field `v` of every line."""


_RECORD = tuple(field.name for field in fields(DecisionRecord))
_SHADOW = tuple(field.name for field in fields(ShadowPick))

_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "Reason": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (NoneType,),
}


class SchemaError(ValueError):
    """A line is not a record; the text has the error and quotes only names."""


def decision_line(record: DecisionRecord, prompt: dict[str, Any] | None = None) -> str:
    """Write a record as a line, with the prompt of a capture."""
    row: dict[str, Any] = {"v": VERSION, "kind": "decision"}
    row |= {name: getattr(record, name) for name in _RECORD}
    row["shadows"] = [{name: getattr(shadow, name) for name in _SHADOW} for shadow in record.shadows]
    return _line(row if prompt is None else {**row, "capture": prompt})


def marker_line(kind: str, **fields: object) -> str:
    """Write a line that is no decision, with its line break."""
    return _line({"v": VERSION, "kind": kind, **fields})


def read_row(line: bytes) -> tuple[DecisionRecord | int | None, dict[str, Any]]:
    """Read a line, and all its fields: the record of a decision, the number of lost records, None for other kinds."""
    try:
        row = json.loads(line)
    except ValueError:  # of JSON or of UTF-8
        raise SchemaError("not JSON") from None
    except RecursionError:
        raise SchemaError("nested too deep") from None
    if not isinstance(row, dict):
        raise SchemaError("not a JSON object")
    if row.get("v") != VERSION:
        raise SchemaError(f"version {row.get('v')!r:.20}, and this reader knows {VERSION} of decision records")
    match row.get("kind"):
        case "decision":
            shadows = row.get("shadows")
            if not isinstance(shadows, list) or not all(isinstance(shadow, dict) for shadow in shadows):
                raise SchemaError("field 'shadows' is missing or no list of objects")
            picks = tuple(ShadowPick(**_values(ShadowPick, shadow)) for shadow in shadows)
            return DecisionRecord(**_values(DecisionRecord, row), shadows=picks), row
        case "lost":
            return int(_value("records", "int", row)), row
        case "capture" | "end":
            return None, row
    raise SchemaError(f"unknown kind of line {row.get('kind')!r:.40}, not 'decision' or 'lost'")


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


def _values(of: type[DecisionRecord | ShadowPick], row: dict[str, Any]) -> dict[str, Any]:
    """Read the fields of a value type from a row; those with a default may be missing."""
    taken = (field for field in fields(of) if field.name in row or field.default is MISSING)
    return {field.name: _value(field.name, str(field.type), row) for field in taken if field.name != "shadows"}


def _value(name: str, annotation: str, row: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the field holds
    """Read one field from a row and check its type against the annotation."""
    kinds = tuple(kind for part in annotation.split(" | ") for kind in _KINDS[part])
    if name not in row:
        raise SchemaError(f"field {name!r} is missing")
    value = row[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise SchemaError(f"field {name!r} is {type(value).__name__}, not {annotation}")
    if isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
        raise SchemaError(f"field {name!r} is out of range: {value!r:.20}")
    return value


_LARGEST = 2.0**63
