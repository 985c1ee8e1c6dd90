"""JSON Schema of one option: types and choices as its signature has them, bounds as its object enforces them.

Bounds are found by trial, so that they are written nowhere else: bisection over the numbers that the object accepts.
"""

from __future__ import annotations

import ast
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from cachelb.config.schema import Option

Schema: TypeAlias = dict[str, Any]
Accepts: TypeAlias = Callable[[Any], bool]

NULL: Final[Schema] = {"type": "null"}
NAME: Final = "policy-name"
"""The definition of a policy's name."""

_LEAST_INT, _MOST_INT = -(1 << 64), 1 << 64
_TRIED: Final = (1, 0, 16, 100, 0.5, 2.0, 4096, 1 << 20)  # one of which is within any range
_PLAIN: Final[Mapping[str, Schema]] = {
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "PathLike": {"type": "string"},
    "PolicyLike": {"$ref": f"#/$defs/{NAME}"},
    "PolicyName": {"$ref": f"#/$defs/{NAME}"},
    "Any": {},
}


def describe(option: Option, accepts: Accepts) -> Schema:
    """Describe an option."""
    described: Schema = _kind(ast.parse(option.annotation, mode="eval").body, accepts) or {}
    if accepts(None) and NULL not in (kinds := described.get("anyOf", [described])):
        described = {"anyOf": [*kinds, NULL]}
    if option.text:
        described = {"description": " ".join(option.text.split()), **described}
    if not option.is_required and (option.default is None or isinstance(option.default, str | int | float | tuple)):
        described["default"] = list(option.default) if isinstance(option.default, tuple) else option.default
    return described


def _kind(node: ast.expr, accepts: Accepts) -> Schema | None:  # noqa: PLR0911 - one per form of a type
    """Describe a type; None if no file holds such values."""
    match node:
        case ast.BinOp():
            sides = [side for part in (node.left, node.right) if (side := _kind(part, accepts)) is not None]
            kinds = [each for side in sides for each in side.get("anyOf", [side])]
            return any_of([each for n, each in enumerate(kinds) if each not in kinds[:n]]) if kinds else None
        case ast.Constant(value=None):
            return dict(NULL)
        case ast.Name(id="int" | "float" as name):
            return {"type": "integer" if name == "int" else "number", **_bounds(accepts, whole=name == "int")}
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id="PathLike" as name)):
            return dict(_PLAIN[name]) if name in _PLAIN else None
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            return {"enum": [word.value for word in _parts(words) if isinstance(word, ast.Constant)]}
        case ast.Subscript(value=ast.Name(id="Mapping"), slice=ast.Tuple(elts=[_, values])):
            return {"type": "object", "additionalProperties": _kind(values, lambda value: accepts({"cpu": value}))}
        case ast.Subscript(value=ast.Name(id="Sequence" | "Iterable" | "tuple"), slice=items):
            item = _kind(_parts(items)[0], lambda value: accepts((value,))) or {}
            several: Schema = {"type": "array", "items": item}
            alone = item.get("enum", ["x"] if item == _PLAIN["str"] else [])  # some read one text as a list of one
            return any_of([item, several]) if any(map(accepts, alone)) else several
    raise TypeError(f"no JSON Schema for the type {ast.unparse(node)!r}; add it to this function")


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def trial(build: Callable[..., object], key: str, options: Iterable[str]) -> Accepts:
    """Return whether an object takes a value of an option, by itself or together with others that the error names."""
    others = set(options) - {key}

    def accepts(value: object) -> bool:
        try:
            build(**{key: value})
        except (TypeError, ValueError, OverflowError) as error:
            return not others.isdisjoint(re.findall(r"\w+", str(error)))
        except ModuleNotFoundError:
            return True
        return True

    return accepts


def _bounds(accepts: Accepts, *, whole: bool) -> Schema:
    """Find the range of accepted numbers by bisection, none if no number is accepted alone."""
    place, number = (int, int) if whole else (_place, _float)
    inside = next((value for value in _TRIED if (not whole or isinstance(value, int)) and accepts(value)), None)
    if inside is None:
        return {}
    found: Schema = {}
    ends = (_LEAST_INT, _MOST_INT) if whole else (-sys.float_info.max, sys.float_info.max)
    for end, word in zip(ends, ("inimum", "aximum"), strict=True):
        if accepts(end):
            continue
        good, bad = place(inside), place(end)
        while abs(good - bad) > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if accepts(number(middle)) else (good, middle)
        last, beyond = number(good), number(bad)
        is_open = not whole and len(_short(beyond)) < len(_short(last))  # 0 < x, not 5e-324 <= x
        key = f"exclusiveM{word}" if is_open else f"m{word}"
        found[key] = float(_short(beyond if is_open else last)) if not whole else last
    return found


def _short(value: float) -> str:
    return f"{value!r}".removesuffix(".0").removeprefix("-")


def _place(value: float) -> int:
    """Return the position of a number among all floats."""
    bits: int = struct.unpack("<q", struct.pack("<d", float(value)))[0]
    return bits if bits >= 0 else -(bits & (1 << 63) - 1)


def _float(place: int) -> float:
    """Return the number at a position."""
    found: float = struct.unpack("<d", struct.pack("<q", abs(place)))[0]
    return found if place >= 0 else -found


def any_of(kinds: list[Schema]) -> Schema:
    """Describe a value of one of several kinds."""
    return {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
