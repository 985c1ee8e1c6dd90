"""When requests arrive. All of a process's randomness comes from the generator it is given.

Random processes draw gaps of unit mean and stretch them, so another rate meets the same draws.
Times are rounded to microseconds: platforms may differ in the last bit of a logarithm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cachelb.common.arguments import number, whole
from cachelb_lab.sim.checks import MOST_REQUESTS, pairs

Seconds = npt.NDArray[np.float64]


_LEAST, _MOST = 1e-9, 1e9
"""Bounds of rates per second, seconds and requests: once in thirty years, and as often as a clock ticks."""


class ArrivalProcess(Protocol):
    """A process of arrivals.

    Example:
        >>> import numpy as np
        >>> from cachelb_lab.sim.workloads import ArrivalProcess, Poisson
        >>> process: ArrivalProcess = Poisson(rate=2.0)
        >>> times = process.times(1000, np.random.default_rng(1))
        >>> bool((np.diff(times) >= 0).all()), round(float(times[-1] / 1000), 1)
        (True, 0.5)
    """

    def times(self, count: int, rng: np.random.Generator) -> Seconds:
        """Return when requests arrive.

        Args:
            count: How many.
            rng: Source of randomness.

        Returns:
            Seconds from the start, ascending.
        """
        ...


def microseconds(seconds: Seconds) -> Seconds:
    """Round to the nearest multiples of 1e-6.

    Example:
        >>> microseconds(np.array([0.12345649])).tolist()
        [0.123456]
    """
    rounded: Seconds = np.rint(seconds * 1e6) / 1e6
    return rounded


@dataclass(frozen=True, slots=True)
class _Positive:
    """A process whose fields are numbers above 0."""

    def __post_init__(self) -> None:
        for each in fields(self):
            positive(each.name, getattr(self, each.name))


@dataclass(frozen=True, slots=True)
class Poisson(_Positive):
    """Independent arrivals.

    Attributes:
        rate: Arrivals per second.

    Raises:
        ValueError: The rate is not positive.

    Example:
        >>> Poisson(4).times(3, np.random.default_rng(0)).round(3).tolist()
        [0.17, 0.425, 0.43]
    """

    rate: float

    def times(self, count: int, rng: np.random.Generator) -> Seconds:
        """Return when requests arrive; see `ArrivalProcess`."""
        return microseconds(np.cumsum(rng.standard_exponential(requests(count))) / self.rate)


@dataclass(frozen=True, slots=True)
class Constant(_Positive):
    """Arrivals at equal distances, the first at once.

    Attributes:
        rate: Arrivals per second.

    Raises:
        ValueError: The rate is not positive.

    Example:
        >>> Constant(4).times(3, np.random.default_rng(0)).tolist()
        [0.0, 0.25, 0.5]
    """

    rate: float

    def times(self, count: int, rng: np.random.Generator) -> Seconds:  # noqa: ARG002 - nothing is left to chance
        """Return when requests arrive; see `ArrivalProcess`."""
        return microseconds(np.arange(requests(count)) / self.rate)


@dataclass(frozen=True, slots=True)
class Gamma(_Positive):
    """Arrivals more or less bursty than independent ones.

    Attributes:
        rate: Arrivals per second.
        cv: Coefficient of variation of the gaps; 1 is Poisson, above is bursty.

    Raises:
        ValueError: One is not positive.

    Example:
        >>> Gamma(4, cv=2).times(3, np.random.default_rng(0)).round(3).tolist()
        [0.165, 0.165, 0.623]
    """

    rate: float
    cv: float

    def times(self, count: int, rng: np.random.Generator) -> Seconds:
        """Return when requests arrive; see `ArrivalProcess`."""
        square = self.cv * self.cv
        return microseconds(np.cumsum(rng.standard_gamma(1 / square, requests(count))) * square / self.rate)


@dataclass(frozen=True, slots=True)
class Steps:
    """Independent arrivals at a rate that changes after so many requests.

    Attributes:
        stages: Rates in arrivals per second, each with how many requests arrive at it; the last
            rate also holds for all after that.

    Raises:
        ValueError: There is no stage, or one is not positive.

    Example:
        >>> times = Steps(((10, 1000), (22, 1000))).times(2000, np.random.default_rng(0))
        >>> [round(float(t)) for t in (times[999], times[-1])]
        [102, 148]
    """

    stages: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages must name at least one rate")
        for rate, count in pairs("stages", self.stages):
            positive("rate", rate)
            positive("requests of a stage", count)

    def times(self, count: int, rng: np.random.Generator) -> Seconds:
        """Return when requests arrive; see `ArrivalProcess`."""
        count = requests(count)
        each = [min(count, arrivals) for _, arrivals in self.stages]
        rates = np.repeat([rate for rate, _ in self.stages], each)[:count]
        rates = np.concatenate([rates, np.full(count - len(rates), self.stages[-1][0])])
        return microseconds(np.cumsum(rng.standard_exponential(count) / rates))


@dataclass(frozen=True, slots=True)
class Bursts(_Positive):
    """Requests that come together.

    Attributes:
        size: How many at one instant.
        period_s: Seconds between two bursts.

    Raises:
        ValueError: One is not positive.

    Example:
        >>> Bursts(2, 3.0).times(5, np.random.default_rng(0)).tolist()
        [0.0, 0.0, 3.0, 3.0, 6.0]
    """

    size: int
    period_s: float

    def times(self, count: int, rng: np.random.Generator) -> Seconds:  # noqa: ARG002 - nothing is left to chance
        """Return when requests arrive; see `ArrivalProcess`."""
        burst = (np.arange(requests(count)) // self.size).astype(np.float64)
        return microseconds(burst * self.period_s)


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """The arrivals of a trace, from the start again when it ends.

    Attributes:
        seconds: Ascending times.

    Raises:
        ValueError: They are not.

    Example:
        >>> Given(np.array([0.0, 1.0])).times(3, np.random.default_rng(0)).tolist()
        [0.0, 1.0, 1.0]
    """

    seconds: Seconds

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, np.ndarray):
            raise TypeError(f"seconds must be a numpy array, got {type(self.seconds).__name__}")
        if not len(self.seconds):
            raise ValueError("seconds must hold at least one time")
        if self.seconds[0] < 0:
            raise ValueError(f"seconds must not begin before 0, got {self.seconds[0]:g}")
        if (falls := np.flatnonzero(np.diff(self.seconds) < 0)).size:
            at = falls[0] + 1
            before, wrong = self.seconds[at - 1], self.seconds[at]
            raise ValueError(f"seconds[{at}] is {wrong:g} behind {before:g}: times must ascend")

    def times(self, count: int, rng: np.random.Generator) -> Seconds:  # noqa: ARG002 - nothing is left to chance
        """Return when requests arrive; see `ArrivalProcess`."""
        lap, place = np.divmod(np.arange(requests(count)), len(self.seconds))
        times: Seconds = self.seconds[place] + lap * float(self.seconds[-1])
        return microseconds(times)


def parse_arrivals(text: str, rate: float) -> ArrivalProcess:
    """Make an arrival process from its short name.

    Args:
        text: ``poisson``, ``constant``, ``gamma:CV``, ``step:TO@N`` (another rate from the N-th request on) or
            ``bursts:N`` (N at a time).
        rate: Arrivals per second.

    Returns:
        The process.

    Raises:
        ValueError: There is no such process, or a number is not positive.

    Example:
        >>> parse_arrivals("step:22@10000", rate=10)
        Steps(stages=((10, 10000), (22.0, 1)))
    """
    kind, _, rest = text.partition(":")
    to, _, count = rest.partition("@")
    processes: dict[str, Callable[[], ArrivalProcess]] = {
        "gamma": lambda: Gamma(rate, float(rest)),
        "step": lambda: Steps(((rate, int(count)), (float(to), 1))),
        "bursts": lambda: Bursts(int(rest), int(rest) / rate),
        **({} if rest else {"poisson": lambda: Poisson(rate), "constant": lambda: Constant(rate)}),
    }
    try:
        if kind in processes:
            return processes[kind]()
    except ValueError as error:
        raise ValueError(f"arrivals {text!r}: {error}") from error
    raise ValueError(f"arrivals {text!r}: use poisson, constant, gamma:CV, step:RATE@REQUESTS or bursts:N")


def requests(count: int) -> int:
    """Check that a workload may have so many requests, and return the number."""
    return whole("count", count, 0, MOST_REQUESTS)


def positive(name: str, value: float) -> None:
    """Refuse anything but a finite number above 0."""
    if number(name, value) > _MOST or value < _LEAST:
        raise ValueError(f"{name} must be from {_LEAST:g} to {_MOST:g}, got {value:g}")
