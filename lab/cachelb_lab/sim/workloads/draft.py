"""Drafts of workloads: a prompt is a run of named pieces, each of some tokens and a message of its own.

Two prompts share exactly the leading tokens of the pieces that they have in common, with any block
size: the hash of a block is that of the pieces before its end and of its place in the last one.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cachelb.common.arguments import MOST_TOKENS, number, whole
from cachelb_lab.sim.checks import MOST_BLOCKS, MOST_REQUESTS
from cachelb_lab.sim.trace_files.mixing import mix, mix_in_place
from cachelb_lab.sim.workloads.arrivals import ArrivalProcess, Poisson, microseconds
from cachelb_lab.sim.workloads.workload import Workload, make

_CHUNK_BLOCKS = 1_000_000
_MOST_EXPONENT = 100.0


class Piece(NamedTuple):
    """A stretch of text that prompts may share.

    Attributes:
        name: Number that no other text has.
        tokens: Its length.

    Example:
        >>> from cachelb_lab.sim.workloads import Piece
        >>> Piece(name=7, tokens=512).tokens
        512
    """

    name: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of every generator.

    Attributes:
        seed: Seed of every random choice.
        count: Requests to generate.
        arrivals: When requests arrive, or sessions begin.
        block_size: Tokens per block.

    Raises:
        ValueError: ``count`` or ``block_size`` is below 1, ``seed`` negative, or one of them too large.
        TypeError: One of them is not an integer.

    Example:
        >>> from cachelb_lab.sim.workloads import Plan, Poisson
        >>> Plan(seed=1, count=100, arrivals=Poisson(20.0)).block_size
        16
    """

    seed: int = 0
    count: int = 1000
    arrivals: ArrivalProcess = Poisson(8.0)  # noqa: RUF009 - frozen
    block_size: int = 16

    def __post_init__(self) -> None:
        whole("seed", self.seed, 0, (1 << 64) - 1)
        whole("count", self.count, 1, MOST_REQUESTS)
        whole("block_size", self.block_size, 1, MOST_TOKENS)


class Draft:
    """A workload being written.

    Chance has one generator per concern, all from the plan's seed: another arrival process changes
    no prompt, and other lengths do not change shared prefixes.

    Args:
        name: Name of the workload.
        plan: The generator's plan.

    Attributes:
        arrivals: Generator of arrival times.
        lengths: Generator of lengths.
        prefixes: Generator of shared prefixes.
        pauses: Generator of the pauses inside sessions.

    Example:
        >>> from cachelb_lab.sim.workloads import Draft, Plan
        >>> Draft("mine", Plan(seed=1, count=10)).plan.count
        10
    """

    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        self.plan = plan
        self.arrivals, self.lengths, self.prefixes, self.pauses = np.random.default_rng(plan.seed).spawn(4)
        # Texts of different generators or seeds have different names.
        salt = (plan.seed * 2**32 + zlib.crc32(name.encode())) % 2**64
        self._next = int(mix(np.array([salt], dtype=np.uint64))[0])
        self._pieces, self._tokens = array("Q"), array("q")
        self._rows = array("q")  # where the pieces of each row begin
        self._requests: list[tuple[float, int, float, int, int, str]] = []
        self._known_answers = False

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        """Return whether there are as many requests as planned."""
        return len(self) >= self.plan.count

    def piece(self, tokens: int) -> Piece:
        """Return a new text.

        Args:
            tokens: Its length; a text has at least one token.

        Returns:
            The piece.

        Raises:
            TypeError: It is not a number.
            ValueError: It is longer than a prompt may be.
        """
        length = _length("tokens", tokens)
        self._next = (self._next + 1) % 2**64
        return Piece(self._next, length)

    def request(
        self,
        prompt: Iterable[Piece],
        answer: Piece | int,
        *,
        arrival_s: float = float("nan"),
        parent: int = -1,
        think_s: float = 0.0,
        session: str = "",
    ) -> int:
        """Append a request.

        Args:
            prompt: Its prompt.
            answer: Its answer, so that a later prompt can contain it, or only its length.
            arrival_s: When it arrives; left out, it arrives as the plan has it or with its parent.
            parent: Row of the request it follows.
            think_s: Pause between that one's end and its arrival.
            session: Its session.

        Returns:
            Its row.

        Raises:
            TypeError: A length is not a number.
            ValueError: The prompt or the answer is too long.
        """
        row = len(self)
        self._rows.append(len(self._pieces))
        tokens = 0
        for piece in prompt:
            self._pieces.append(piece.name)
            self._tokens.append(piece.tokens)
            tokens += piece.tokens
        if tokens > MOST_TOKENS:
            raise ValueError(f"request {row} has a prompt of {tokens} tokens, {MOST_TOKENS} at most")
        if isinstance(answer, Piece):
            self._known_answers = True
        else:
            answer = Piece(0, _length("answer", answer))
        self._pieces.append(answer.name)
        self._tokens.append(answer.tokens)
        self._requests.append((arrival_s, parent, round(think_s, 3), tokens, answer.tokens, session))
        return row

    def ask(self, prompt: Iterable[Piece], question_tokens: float, output_tokens: float, **options: Any) -> int:  # noqa: ANN401 - those of `request`
        """Append a request with a question of its own behind a prompt.

        Args:
            prompt: The pieces before the question.
            question_tokens: Median length of the question.
            output_tokens: Median length of the answer.
            **options: Further arguments of `request`.

        Returns:
            Its row.
        """
        question = self.piece(around(self.lengths, question_tokens))
        return self.request([*prompt, question], around(self.lengths, output_tokens), **options)

    def finish(self) -> Workload:
        """Return the workload, in order of arrival.

        Returns:
            The workload; requests that have neither time nor parent arrive by the plan.
        """
        *columns, session = zip(*self._requests, strict=True) if self._requests else [()] * 6
        arrival_s, parent, think_s, prompt, output = map(np.array, columns)
        open_rows = np.flatnonzero(np.isnan(arrival_s) & (parent < 0))
        if len(open_rows):
            arrival_s[open_rows] = self.plan.arrivals.times(len(open_rows), self.arrivals)
        hashes, counts = self._hashes()
        in_prompt = prompt // self.plan.block_size
        if self._known_answers:
            # A row's last blocks are those its answer fills.
            from_answer = np.ones(len(hashes), dtype=bool)
            offsets = np.concatenate([[0], np.cumsum(counts)])
            for begin, blocks in zip(offsets.tolist(), in_prompt.tolist(), strict=False):
                from_answer[begin : begin + blocks] = False
            answers, hashes = hashes[from_answer], hashes[~from_answer]
            answer_offsets = np.concatenate([[0], np.cumsum(counts - in_prompt)])
        else:
            answers, answer_offsets = None, None
        # Every piece but the answer is a message.
        ends = np.cumsum(self._tokens)
        pieces = np.array([*self._rows, len(self._pieces)], dtype=np.int64)
        ends -= np.repeat(np.concatenate([[0], ends[pieces[1:-1] - 1]]), np.diff(pieces))
        boundaries = np.delete(ends, pieces[1:] - 1)
        return make(
            self.name,
            block_size=self.plan.block_size,
            seed=self.plan.seed,
            arrival_s=microseconds(arrival_s),
            parent=parent,
            think_s=think_s,
            prompt_tokens=prompt,
            output_tokens=output,
            hashes=hashes,
            offsets=np.concatenate([[0], np.cumsum(in_prompt)]),
            output_hashes=answers,
            output_offsets=answer_offsets,
            session=list(session) if any(session) else None,
            boundaries=boundaries,
            boundary_offsets=np.concatenate([[0], np.cumsum(np.diff(pieces) - 1)]),
        ).in_order()

    def _hashes(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return the hashes of all blocks, row after row, and how many each row has.

        Unnamed answers have none.
        """
        size = self.plan.block_size
        names = np.array(self._pieces, dtype=np.uint64)
        tokens = np.array(self._tokens, dtype=np.int64)
        rows = np.array(self._rows, dtype=np.int64)
        per_row = np.diff(rows, append=len(names))
        place = np.arange(len(names)) - np.repeat(rows, per_row)
        ends = np.cumsum(tokens)
        begins = ends - tokens
        begins -= np.repeat(begins[rows], per_row)
        blocks = (begins + tokens) // size - begins // size
        if not self._known_answers:
            blocks[rows + per_row - 1] = 0
        # The pieces before each one: a sum, every piece mixed with length and place.
        before = mix(mix(names) + tokens.astype(np.uint64))
        before += place.astype(np.uint64)
        mix_in_place(before)
        sums = np.cumsum(before) - before
        state = mix(sums - np.repeat(sums[rows], per_row) + mix(names))
        total = int(blocks.sum())
        if total > MOST_BLOCKS:
            raise ValueError(
                f"workload {self.name!r} has {total} blocks, {MOST_BLOCKS} at most; lower count= or the lengths"
            )
        hashes = np.empty(total, dtype=np.uint64)
        filled = np.cumsum(blocks)
        begin, at = 0, 0
        while begin < len(names):
            end = max(begin + 1, int(np.searchsorted(filled, at + _CHUNK_BLOCKS, side="right")))
            count = blocks[begin:end]
            # The first block that ends in a piece begins before or with it.
            first = (begins[begin:end] // size + 1) * size - begins[begin:end]
            nth = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
            inside = np.repeat(first, count) + nth * size
            chunk = np.repeat(state[begin:end], count) + inside.astype(np.uint64)
            mix_in_place(chunk)
            hashes[at : at + len(chunk)] = chunk
            begin, at = end, at + len(chunk)
        return hashes, np.add.reduceat(blocks, rows)


def _length(name: str, tokens: float) -> int:
    """Return the length of a text: one token at least."""
    if isinstance(tokens, bool) or not isinstance(tokens, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, got {type(tokens).__name__}")
    if not tokens <= MOST_TOKENS:
        shown = "a huge number" if isinstance(tokens, int) and tokens > 1 << 128 else tokens
        raise ValueError(f"{name} must be {MOST_TOKENS} at most, got {shown}")
    return int(max(1, tokens))


def around(rng: np.random.Generator, median: float, sigma: float = 0.6) -> int:
    """Draw a lognormal length around a median, rounded, at least 1; `sigma` is the spread of its logarithm."""
    return max(1, round(median * float(rng.lognormal(0.0, sigma))))


def near(rng: np.random.Generator, mean: float, relative: float) -> int:
    """Draw a normal length near a mean, rounded, at least 1; `relative` is the deviation as a part of the mean."""
    return max(1, round(mean * (1.0 + relative * float(rng.standard_normal()))))


class Zipf:
    """Draws indices, the first ones more often, or with exponent 0 all alike.

    Example:
        >>> draws = Zipf(100).draw(np.random.default_rng(0), 1000)
        >>> int((draws == 0).sum()) > 100
        True
    """

    def __init__(self, count: int, exponent: float = 1.0) -> None:
        if count < 1:
            raise ValueError(f"need at least one thing to draw, got {count}")
        number("exponent", exponent, least=0.0, most=_MOST_EXPONENT)
        # Platforms may differ in the last bit of a power; rounding hides that.
        weights = np.array([round((1.0 / (place + 1)) ** exponent, 12) for place in range(count)])
        self._ends = np.cumsum(weights / weights.sum())

    def draw(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
        """Draw indices from 0."""
        drawn = np.searchsorted(self._ends, rng.random(size), side="right")
        return np.minimum(drawn, len(self._ends) - 1).astype(np.int64)
