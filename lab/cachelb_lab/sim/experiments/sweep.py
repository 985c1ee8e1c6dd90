"""One setting through several values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

from cachelb.common.arguments import listed
from cachelb.common.calls import number_or_text

Setting: TypeAlias = "int | float | str"
"""A value of a setting."""

MAX_VALUES = 1_000
"""More values than this are taken for a slip."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A setting and its values.

    Attributes:
        name: A setting of the run (`RUN_SETTINGS`), or an option of the router or of the policies.
        values: At least one, each once.

    Raises:
        ValueError: There is no value, or one twice.
    """

    name: str
    values: tuple[Setting, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(listed("values", self.values, MAX_VALUES)))
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"sweep {self.name!r} needs values that differ, got {list(self.values)}")

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Read a sweep from its short form.

        Args:
            text: ``NAME=FROM:TO:STEP``, both ends included, or ``NAME=VALUE,VALUE``.

        Returns:
            The sweep. Hyphens in the name count as underscores.

        Raises:
            ValueError: The text has another form.

        Example:
            >>> Sweep.parse("cache-threshold=0.1:0.5:0.2")
            Sweep(name='cache_threshold', values=(0.1, 0.3, 0.5))
            >>> Sweep.parse("mode=sticky,hash").values, Sweep.parse("gateways=1:4:1").values
            (('sticky', 'hash'), (1, 2, 3, 4))
        """
        name, _, written = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not written.strip():
            raise ValueError(f"cannot read {text!r}; write NAME=FROM:TO:STEP or NAME=VALUE,VALUE")
        if ":" in written:
            return cls(name, _steps(text, written.split(":")))
        return cls(name, tuple(number_or_text(part.strip()) for part in written.split(",")))


def _steps(text: str, parts: Sequence[str]) -> tuple[Setting, ...]:
    """Return the values of a range."""
    begin = step = Decimal(0)
    try:
        begin, end, step = map(Decimal, parts)
        count = int((end - begin) / step) + 1
    except (ValueError, ArithmeticError, InvalidOperation):
        count = 0
    if not 0 < count <= MAX_VALUES:
        raise ValueError(f"cannot read {text!r}; write FROM:TO:STEP with numbers that go up, such as 0.1:0.9:0.2")
    # Decimals: 0.1 + 0.2 is 0.3 to people.
    return tuple(number_or_text(str(begin + place * step)) for place in range(count))
