"""How bodies are read: the options of `RequestBodies` that are compared."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Final

from cachelb.bodies import RequestBodies

Options = dict[str, Any]
_KNOWN: Final = {field.name for field in dataclasses.fields(RequestBodies)}
LEARNS: Final = "match" in _KNOWN
"""Whether there is a likely layout beside the certain one."""
PROBED: Final = "probed"
"""In the place of options: those that the probe finds for a template."""

CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "tools_place": ("after-system", "before-system", "last-user"),
    "inline_system": ("in-place", "merged"),
    "keeps_reasoning": (True, False, "empty-thought") if LEARNS else (True, False),
    **({"attribution": ("cut", "kept")} if "attribution" in _KNOWN else {}),
}
"""The choices of a layout, the likely one first."""

_CERTAIN: Final[Options] = {"match": "certain"} if LEARNS else {}
READERS: Final[dict[str, Options]] = {
    "default": {},
    "certain": _CERTAIN,
    "certain, vllm": {"engine": "vllm", **_CERTAIN},
    "certain, vllm, probed": {"engine": "vllm", **_CERTAIN, PROBED: "certain"},
    "vllm, after, in-place": {"engine": "vllm", "tools_place": "after-system", "inline_system": "in-place"},
    "vllm, before, in-place": {"engine": "vllm", "tools_place": "before-system", "inline_system": "in-place"},
    "vllm": {"engine": "vllm"},
    "vllm, merged": {"engine": "vllm", "inline_system": "merged"},
    "vllm, likely probed": {"engine": "vllm", PROBED: "likely"},
}
"""Options by name; all that `RequestBodies` of this version does not have are left out."""
if not LEARNS:
    for _name in ("certain", "vllm, merged", "vllm"):
        READERS.pop(_name)


def layouts(**fixed: Any) -> dict[str, Options]:  # noqa: ANN401 - values of options
    """Return the options of every layout, by name, with `fixed` ones in each."""
    return {
        ", ".join(map(str, values)): {"engine": "vllm", **dict(zip(CHOICES, values, strict=True)), **fixed}
        for values in itertools.product(*CHOICES.values())
    }
