"""Requests for conformance tests: seeded traffic that fills, shares and evicts the caches of real engines.

Nothing here talks to an engine. `plan_traffic` lists the requests to send, `waves` groups those that may run at once,
and `Transcript` turns each into token ids, with the answers its conversation has had so far.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

FIRST_PLAIN_TOKEN = 5  # special tokens stand below
SYSTEM_PROMPTS = (64, 96, 150, 200, 256, 330)  # tokens; ends on and between block boundaries
SHARE_OF_WHOLE_BLOCKS = 0.2  # of the prompts with a system prompt; they end exactly on a block boundary
CONVERSATIONS = 6  # open at the same time
MAX_TURN = 100  # tokens a turn adds
ROOM_FOR_ANSWER = 8


class Kind(StrEnum):
    """The effect of a request of the traffic on a cache."""

    SHARED = "shared"  # begins with one of a few system prompts
    TURN = "turn"  # continues a conversation, or opens one
    FILLER = "filler"  # long and unrelated: evicts others
    REPEAT = "repeat"  # the very tokens of an earlier request
    SHORT = "short"  # fills at most one block


KIND_WEIGHTS = {Kind.SHARED: 38, Kind.TURN: 27, Kind.FILLER: 15, Kind.REPEAT: 12, Kind.SHORT: 8}


@dataclass(frozen=True, slots=True)
class Identity:
    """Separates equal tokens in the cache."""

    adapter: str | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of the traffic; `follows` names the request whose prompt and answer come before `tokens`."""

    number: int
    kind: Kind
    worker: int
    identity: Identity
    tokens: tuple[int, ...]
    max_tokens: int
    follows: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as the cache of a worker sees it."""

    worker: int
    identity: Identity
    tokens: tuple[int, ...]


def plan_traffic(
    seed: int,
    *,
    requests: int = 300,
    workers: int = 2,
    adapters: Sequence[str] = ("la", "lb"),
    salts: Sequence[str] = ("tenant-a", "tenant-b"),
    vocabulary: int = 4096,
    block_size: int = 32,
    longest: int = 704,
) -> list[Planned]:
    """Plan mixed requests; the same seed gives the same plan.

    Args:
        seed: Seed of every choice.
        requests: How many to plan.
        workers: How many engines share the traffic; a conversation stays on one of them.
        adapters: LoRA adapters that some requests use.
        salts: Cache salts that some requests use.
        vocabulary: Token ids are below this.
        block_size: Some prompts end exactly on a multiple of it.
        longest: Most tokens of prompt and answer together.

    Returns:
        The requests in the order to send them.
    """
    plain = Identity()
    identities = [plain] * 6 + [Identity(adapter=name) for name in adapters]
    identities += [Identity(cache_salt=salt) for salt in salts]
    identities += [Identity(adapter, salt) for adapter, salt in zip(adapters, salts, strict=False)]
    plan = _Plan(
        random.Random(seed),
        identities=identities,
        workers=workers,
        vocabulary=vocabulary,
        block_size=block_size,
        longest=longest,
    )
    return plan.make(requests)


class _Plan:
    """The state of `plan_traffic`: what was planned so far."""

    def __init__(
        self,
        generator: random.Random,
        *,
        identities: list[Identity],
        workers: int,
        vocabulary: int,
        block_size: int,
        longest: int,
    ) -> None:
        self._random = generator
        self._identities = identities
        self._workers = workers
        self._vocabulary = vocabulary
        self._block_size = block_size
        self._longest = longest
        self._most = longest - ROOM_FOR_ANSWER
        self._systems = [self._fresh(length) for length in SYSTEM_PROMPTS]
        self._plan: list[Planned] = []
        self._lengths: list[int] = []  # of prompt and answer, per request
        self._open: list[Planned] = []  # the latest turn of each conversation

    def make(self, requests: int) -> list[Planned]:
        makers: dict[Kind, Callable[[], Planned]] = {
            Kind.SHARED: self._shared,
            Kind.TURN: self._turn,
            Kind.FILLER: lambda: self._single(
                Kind.FILLER, self._random.randint(self._longest // 2, self._longest - ROOM_FOR_ANSWER)
            ),
            Kind.REPEAT: self._repeat,
            Kind.SHORT: lambda: self._single(Kind.SHORT, self._random.randint(1, self._block_size)),
        }
        for _ in range(requests):
            kind = self._random.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))[0]
            planned = makers[kind]()
            before = 0 if planned.follows is None else self._lengths[planned.follows]
            self._plan.append(planned)
            self._lengths.append(before + len(planned.tokens) + planned.max_tokens)
        return self._plan

    def _fresh(self, length: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(FIRST_PLAIN_TOKEN, self._vocabulary) for _ in range(length))

    def _planned(self, kind: Kind, tokens: tuple[int, ...], max_tokens: int) -> Planned:
        worker = self._random.randrange(self._workers)
        return Planned(len(self._plan), kind, worker, self._random.choice(self._identities), tokens, max_tokens)

    def _single(self, kind: Kind, length: int) -> Planned:
        return self._planned(kind, self._fresh(length), 1)

    def _shared(self) -> Planned:
        system = self._random.choice(self._systems)
        length = len(system) + self._random.randint(1, self._most - len(system)) // self._random.choice((1, 2, 4))
        if self._random.random() < SHARE_OF_WHOLE_BLOCKS:
            length += -length % self._block_size
        fresh = self._fresh(min(length, self._most) - len(system))
        return self._planned(Kind.SHARED, system + fresh, self._random.choice((1, 1, 4)))

    def _turn(self) -> Planned:
        max_tokens = self._random.choice((1, 8, 40))  # a long answer fills blocks of its own
        room = [turn for turn in self._open if self._lengths[turn.number] + MAX_TURN + max_tokens <= self._longest]
        if len(room) < CONVERSATIONS:
            opening = self._random.choice(self._systems) + self._fresh(self._random.randint(10, MAX_TURN))
            turn = self._planned(Kind.TURN, opening, max_tokens)
        else:
            last = self._random.choice(room)
            self._open.remove(last)
            tokens = self._fresh(self._random.randint(10, MAX_TURN))
            turn = Planned(len(self._plan), Kind.TURN, last.worker, last.identity, tokens, max_tokens, last.number)
        self._open.append(turn)
        return turn

    def _repeat(self) -> Planned:
        earlier = [planned for planned in self._plan[-40:] if planned.follows is None]
        if not earlier:
            return self._single(Kind.FILLER, self._longest // 2)
        chosen = self._random.choice(earlier)
        worker = chosen.worker if self._random.random() < 0.8 else self._random.randrange(self._workers)
        return Planned(len(self._plan), Kind.REPEAT, worker, chosen.identity, chosen.tokens, chosen.max_tokens)


def waves(plan: Iterable[Planned], width: int) -> Iterator[list[Planned]]:
    """Cut a plan into groups whose requests may be in flight together: no turn with the one it follows."""
    wave: list[Planned] = []
    for planned in plan:
        if len(wave) == width or any(planned.follows == other.number for other in wave):
            yield wave
            wave = []
        wave.append(planned)
    if wave:
        yield wave


class Transcript:
    """The prompts and answers so far."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[int, ...]] = {}
        self._prompts: dict[int, Prompt] = {}

    def prompt(self, planned: Planned) -> Prompt:
        """Return the prompt of a request; the one it follows must be recorded."""
        before = () if planned.follows is None else self._texts[planned.follows]
        return Prompt(planned.worker, planned.identity, before + planned.tokens)

    def record(self, planned: Planned, output: Sequence[int]) -> None:
        """Keep what was answered."""
        prompt = self.prompt(planned)
        self._prompts[planned.number] = prompt
        self._texts[planned.number] = (*prompt.tokens, *output)

    def sent(self) -> list[Prompt]:
        """Return every prompt that was answered, in the order of the plan."""
        return [self._prompts[number] for number in sorted(self._prompts)]
