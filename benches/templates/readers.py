"""How bodies are read: the options of `RequestBodies` that are compared."""

from __future__ import annotations

import itertools
from typing import Any, Final

from cachelb_lab.probe import CHOICES

Options = dict[str, Any]
PROBED: Final = "probed"
"""In the place of options: those that the probe finds for a template."""

_VLLM: Final[Options] = {"engine": "vllm"}
_CERTAIN: Final[Options] = {"match": "certain"}
READERS: Final[dict[str, Options]] = {
    "default": {},
    "vllm": _VLLM,
    "vllm, merged": _VLLM | {"inline_system": "merged"},
    "vllm, before": _VLLM | {"tools_place": "before-system"},
    "vllm, probed": _VLLM | {PROBED: "likely"},
    "certain": _CERTAIN,
    "certain, vllm": _VLLM | _CERTAIN,
    "certain, vllm, probed": _VLLM | {PROBED: "certain"},
}
"""Options by name."""


def layouts() -> dict[str, Options]:
    """Return the options of every layout of a template, by name."""
    return {
        ", ".join(map(str, values)): _VLLM | dict(zip(CHOICES, values, strict=True))
        for values in itertools.product(*CHOICES.values())
    }
