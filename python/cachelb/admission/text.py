"""Options of an admission from a short text, such as an argument of a command."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from cachelb.admission import AdmissionOptions
from cachelb.common.calls import read_options
from cachelb.errors import did_you_mean

DEFAULT: Final = "default"
"""Stands for the defaults, as the empty text does."""

_NAMES: Final = tuple(option.name for option in fields(AdmissionOptions))


def parse(text: str) -> AdmissionOptions:
    """Read ``max_wait_s=1.5,max_pending_tokens=4096``; options that are not named have their defaults.

    Example:
        >>> parse("max_wait_s=0,order=edf").order
        'edf'
        >>> parse("default") == parse("") == AdmissionOptions()
        True
        >>> parse("max_wait=1")
        Traceback (most recent call last):
        ValueError: an admission has no option 'max_wait'; did you mean 'max_wait_s'?
    """
    given: dict[str, Any] = {} if text.strip() == DEFAULT else {**read_options(text)}
    for name in given:
        if name not in _NAMES:
            raise ValueError(f"an admission has no option {name!r}{did_you_mean(name, _NAMES)}")
    return AdmissionOptions(**given)
