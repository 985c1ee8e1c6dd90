"""Probes for conformance tests: requests of which a prediction is compared with what a real engine reports.

A random request shows little: most find nothing cached. `ProbePlanner` chooses by stratum, `Tally` counts by stratum.
Nothing here talks to an engine.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle

from tests.engine.traffic import FIRST_PLAIN_TOKEN, Identity, Prompt

MAX_FILLERS = 40


class Stratum(StrEnum):
    """Why a probe was chosen, by what was predicted of it."""

    PARTIAL = "sent before, in part evicted"
    WHOLE = "sent before, held whole"
    EXTENDED = "held prompt with a new end"
    GONE = "sent before, evicted"
    FOREIGN = "held prompt under another identity"
    FILLER = "filler, not counted"


# Three of eight follow a partial eviction and six have cached tokens, if the predictions are right.
PROBE_ORDER = (
    Stratum.PARTIAL,
    Stratum.WHOLE,
    Stratum.PARTIAL,
    Stratum.EXTENDED,
    Stratum.GONE,
    Stratum.PARTIAL,
    Stratum.WHOLE,
    Stratum.FOREIGN,
)


@dataclass(frozen=True, slots=True)
class Probe:
    """A request to send alone, on a stream that has caught up."""

    stratum: Stratum
    prompt: Prompt


class ProbePlanner:
    """Chooses the next probe from the predicted contents of the caches; sends nothing itself.

    A stratum that is empty at the moment is brought about by fillers: they evict, and are returned with
    `Stratum.FILLER`. Every probe changes the cache it goes to, so the next one is chosen after it is answered.

    Args:
        sent: Prompts answered before; where one is given twice, once is enough.
        overlap: Predicted leading blocks of a prompt on its worker: the prediction under test.
        seed: Seed of every choice.
        block_size: Tokens per block.
        vocabulary: Token ids are below this.
        longest: Most tokens of a probe.
    """

    def __init__(
        self,
        sent: Iterable[Prompt],
        overlap: Callable[[Prompt], int],
        *,
        seed: int,
        block_size: int = 32,
        vocabulary: int = 4096,
        longest: int = 704,
    ) -> None:
        # With fewer than two reusable blocks there is nothing between whole and gone.
        self._known = [prompt for prompt in dict.fromkeys(sent) if reusable_blocks(prompt, block_size) >= 2]
        self._overlap = overlap
        self._random = random.Random(seed)
        self._block_size = block_size
        self._vocabulary = vocabulary
        self._longest = longest
        self._identities = sorted({prompt.identity for prompt in self._known}, key=str)
        self._workers = sorted({prompt.worker for prompt in self._known})
        self._fillers = 0
        self._order = cycle(PROBE_ORDER)
        self._wanted = next(self._order)

    def next(self) -> Probe:
        """Return the next request to send: a probe, or a filler that prepares one.

        Raises:
            RuntimeError: Fillers did not help: the traffic or the predictions leave a stratum empty.
        """
        prompt = self._find(self._wanted)
        if prompt is None:
            self._fillers += 1
            if self._fillers > MAX_FILLERS:
                raise RuntimeError(f"no prompt is {self._wanted.value!r} after {MAX_FILLERS} fillers")
            return Probe(Stratum.FILLER, self._filler())
        self._fillers = 0
        probe = Probe(self._wanted, prompt)
        self._wanted = next(self._order)
        return probe

    def _find(self, stratum: Stratum) -> Prompt | None:
        for prompt in self._random.sample(self._known, len(self._known)):
            reusable = reusable_blocks(prompt, self._block_size)
            held = min(self._overlap(prompt), reusable)
            if stratum is Stratum.PARTIAL and 0 < held < reusable:
                return prompt
            if stratum is Stratum.GONE and held == 0:
                return prompt
            if held < reusable:
                continue
            if stratum is Stratum.WHOLE:
                return prompt
            if stratum is Stratum.EXTENDED and len(prompt.tokens) < self._longest:
                end = self._fresh(self._random.randint(1, self._longest - len(prompt.tokens)))
                return Prompt(prompt.worker, prompt.identity, prompt.tokens + end)
            if stratum is Stratum.FOREIGN and (foreign := self._under_other_identity(prompt)) is not None:
                return foreign
        return None

    def _under_other_identity(self, prompt: Prompt) -> Prompt | None:
        others = [identity for identity in self._identities if identity != prompt.identity]
        for identity in self._random.sample(others, len(others)):
            foreign = Prompt(prompt.worker, identity, prompt.tokens)
            if foreign not in self._known:
                return foreign
        return None

    def _filler(self) -> Prompt:
        length = self._random.randint(self._longest // 4, self._longest // 2)
        return Prompt(self._random.choice(self._workers), Identity(), self._fresh(length))

    def _fresh(self, length: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(FIRST_PLAIN_TOKEN, self._vocabulary) for _ in range(length))


def reusable_blocks(prompt: Prompt, block_size: int) -> int:
    """Return how many blocks of a prompt an engine takes from its cache at most: the last token is always computed."""
    return (len(prompt.tokens) - 1) // block_size


class Tally:
    """Counts probes per stratum, by what the engine reported."""

    def __init__(self, block_size: int = 32) -> None:
        self._block_size = block_size
        self._probes: Counter[Stratum] = Counter()
        self._agreed: Counter[Stratum] = Counter()
        self._cached: Counter[Stratum] = Counter()
        self._partial = 0
        self.misses: list[tuple[Probe, int, int]] = []

    def add(self, probe: Probe, *, predicted: int, cached: int) -> None:
        """Count one probe; both figures are tokens. Fillers count nothing."""
        stratum = probe.stratum
        if stratum is Stratum.FILLER:
            return
        self._probes[stratum] += 1
        self._cached[stratum] += cached > 0
        reusable = reusable_blocks(probe.prompt, self._block_size) * self._block_size
        was_whole_once = stratum in {Stratum.PARTIAL, Stratum.WHOLE, Stratum.GONE}
        self._partial += was_whole_once and 0 < cached < reusable
        if predicted == cached:
            self._agreed[stratum] += 1
        else:
            self.misses.append((probe, predicted, cached))

    @property
    def probes(self) -> int:
        """All probes."""
        return self._probes.total()

    @property
    def agreement(self) -> float:
        """Share of probes predicted to the token."""
        return self._agreed.total() / self.probes

    @property
    def cached_share(self) -> float:
        """Share of probes with cached tokens."""
        return self._cached.total() / self.probes

    @property
    def partial_share(self) -> float:
        """Share of probes of which the engine had once all and now has a part."""
        return self._partial / self.probes

    def table(self) -> str:
        """Return the counts per stratum."""
        lines = [f"{'stratum':36} probes agreed cached>0"]
        lines += [
            f"{stratum:36} {self._probes[stratum]:6} {self._agreed[stratum]:6} {self._cached[stratum]:8}"
            for stratum in Stratum
            if self._probes[stratum]
        ]
        total = f"{self.probes:6} {self._agreed.total():6} {self._cached.total():8}"
        lines.append(f"{'all':36} {total}  {self._partial} after partial eviction")
        return "\n".join(lines)
