"""Reads samples in the text format of Prometheus and OpenMetrics, on which engines and routers show their metrics."""

from __future__ import annotations

import re

# The quantifiers are possessive: no page makes them backtrack.
_LABELS = rb"""\{(?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+\}"""
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]++|\\.)*+)"')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}


class Samples:
    r"""The samples of a page whose names match a pattern; anything else is passed over.

    Example:
        >>> Samples(rb"up").of(b'# HELP up ?\nup{job="a b"} 1.0\nupper 2')
        [(b'up{job="a b"}', b'1.0')]
    """

    def __init__(self, names: bytes) -> None:
        self._pattern = re.compile(
            rb"\n[ \t]*+((?:" + names + rb")(?=[ \t{])(?:[ \t]*+" + _LABELS + rb")?+)(?:[ \t]++([^ \t\r\n]++))?"
        )

    def of(self, page: bytes) -> list[tuple[bytes, bytes]]:
        """Return the series, a name with its labels, and the value of each sample; an empty value if there is none."""
        return self._pattern.findall(b"\n" + page)


def split_series(series: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Split a series into its name and its labels, both as written."""
    name, _, labels = series.partition(b"{")
    return name.rstrip(), dict(_LABEL.findall(labels))


def unescape(value: bytes) -> str:
    r"""Return the text that the value of a label stands for.

    Example:
        >>> unescape(rb"a\nb\\c\"")
        'a\nb\\c"'
    """
    return _ESCAPE.sub(lambda found: _UNESCAPED.get(found[1], found[1]), value.decode("utf-8", "replace"))
