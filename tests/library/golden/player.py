"""Plays seeded requests through routers of one policy, and writes down what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.library.golden import api
from tests.library.golden.traffic import Engine, request

WORKERS = ("w0", "w1", "w2", "w3", "w4")


class Clock:
    """Seconds that pass only by assignment."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class Scene:
    """Traffic over one router or several, whose workers may announce blocks.

    Attributes:
        requests: How many.
        options: Options of the policy.
        router: Further options of the routers.
        routers: How many share their state.
        pairs: Options of pairs, if the requests are for pairs.
        events: Whether the engines announce their blocks.
        lost: Whether messages get lost: of engines, and between routers.
        bounds: Options of an admission, if there is one.
        blocks: Blocks that the cache of a worker holds.
        long: Tokens that every prompt has beside.
    """

    requests: int
    options: Mapping[str, Any] = field(default_factory=dict)
    router: Mapping[str, Any] = field(default_factory=dict)
    routers: int = 1
    pairs: Mapping[str, Any] | None = None
    events: bool = False
    lost: bool = False
    bounds: Mapping[str, Any] | None = None
    blocks: int = 400
    long: int = 0


@dataclass
class _Open:
    held: api.Held
    tokens: list[int] | None
    router: api.Subject
    stage: int = 0
    cached: int | None = None


class Player:
    """One scene under one policy. Iterating it gives the lines of each request."""

    def __init__(self, policy: str, scene: Scene) -> None:
        self.clock, self.scene = Clock(), scene
        self._lines: list[str] = []
        self._open: list[_Open] = []
        self.engines = {key: Engine(scene.blocks) for key in (*WORKERS, "new")}
        make: dict[str, Any] = {"pairs": scene.pairs, "replicas": scene.routers, **scene.router}
        self.routers = [api.Subject(policy, scene.options, self.clock, **make) for _ in range(scene.routers)]
        self.router = self.routers[0]
        for at, router in enumerate(self.routers):
            if scene.routers > 1:
                router.share(100 + at)
            for key in WORKERS:
                self.add(router, key)
            if scene.events:
                router.add_shared_cache("store", ["disk"])

    def add(self, router: api.Subject, key: str) -> None:
        """Register a worker: all differ."""
        at = int(key[1]) if key in WORKERS else 1
        router.add(
            key,
            weight=(1.0, 1.0, 2.0, 1.0, 0.5)[at],
            role=("prefill", "decode", "both", "prefill", "decode")[at] if self.scene.pairs is not None else "both",
            ranks=2 if key == "w3" else 1,
            gpu=("A", "B")[at % 2],
            blocks=self.scene.blocks if at % 2 else None,
            slow_start_s=5.0 if key == "new" else 0.0,
        )

    def log(self, text: str) -> None:
        """Write down a line."""
        self._lines.append(text)

    def taken(self, step: int) -> list[str]:
        """Take the lines of a step."""
        lines, self._lines = self._lines, []
        return [f"{step}: {line}" for line in lines]

    def play(self) -> Iterator[list[str]]:
        """Play; give the lines of each step."""
        for step in range(self.scene.requests):
            draw = Random(f"step {step}")
            self.router = self.routers[step % len(self.routers)]
            self.clock.now_s += draw.choice((0.001, 0.01, 0.05, 0.2))
            self._change(draw, step)
            while len(self._open) > 4 + draw.randrange(12):
                self._advance(draw)
            self._exchange(draw, step)
            self._ask(draw, step)
            yield self.taken(step)
        for _ in range(4 * len(self._open)):
            self._advance(Random("the end"))
        yield self.taken(self.scene.requests)

    # --- requests ---

    def _ask(self, draw: Random, step: int) -> None:
        asked = request(draw, only_tokens=self.scene.events and draw.random() < 0.7, long=self.scene.long)
        if draw.random() < 0.05:
            asked["model"] = "other"
        if draw.random() < 0.1:
            asked["exclude"] = draw.sample(WORKERS, 2)
        if draw.random() < 0.05 and self.scene.pairs is None:
            asked["among"] = draw.sample(WORKERS, draw.randrange(1, 4))
        if step % 5 == 0:
            self._try(lambda: self._lines.extend(f"    {line}" for line in self.router.explain(asked)))
        if step % 29 == 3:
            worker = draw.choice(WORKERS)
            asked = {name: value for name, value in asked.items() if name not in {"among", "exclude"}}
            self._book(lambda: self.router.reserve(worker, asked, prefill=step % 2 == 0), asked)
        elif step % 31 == 7:
            several = [request(draw, only_tokens=True) for _ in range(5)]
            self._try(lambda: self._batch(several, draw.choice((None, 2))))
        else:
            pair = self.scene.pairs is not None and step % 8 > 0
            if step % 7 == 0:
                self._try(lambda: self.log(f"dry {api.picked(self.router.select(asked, pair=pair, dry_run=True))}"))
            self._book(lambda: self.router.select(asked, pair=pair), asked)

    def _batch(self, several: list[dict[str, Any]], most: int | None) -> None:
        for held, asked in self.router.batch(several, most):
            self.keep(held, asked)

    def _book(self, select: Callable[[], api.Held], asked: Mapping[str, Any]) -> None:
        self._try(lambda: self.keep(select(), asked))

    def keep(self, held: api.Held, asked: Mapping[str, Any]) -> None:
        """Write down a decision, whose request is now open."""
        self.log(api.picked(held))
        self._open.append(_Open(held, asked.get("tokens"), self.router))

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except api.Refused as error:
            self.log(api.refusal(error))
        except (TypeError, ValueError) as error:
            self.log(type(error).__name__)

    def _advance(self, draw: Random) -> None:
        """Advance a random open request: its first token, its end, or a failure."""
        if not self._open:
            return
        each = self._open[draw.randrange(len(self._open))]
        held, event = each.held, draw.random()
        if event < 0.04:
            self._open.remove(each)
            self._try(lambda: self.log(f"error {held.on_error(draw.choice((400, 404, 429, 500, 502, 503)))}"))
            if draw.random() < 0.7:
                self._try(lambda: self._again(each))
        elif event < 0.06:
            self._open.remove(each)
            self.log(f"error {held.on_error(draw.choice((TimeoutError(), ConnectionError(), KeyError('own'))))}")
        elif event < 0.08:
            self._open.remove(each)
            self._try(lambda: self._again(each))
        elif event < 0.11:
            self._open.remove(each)
            held.cancel()
        elif event < 0.12:
            self._open.remove(each)  # Abandoned: no call ends it.
        elif each.stage == 0:
            self._serve(each)
            held.on_first_token()
            each.stage = 1
        elif each.stage == 1:
            held.on_tokens(draw.randrange(40))
            each.stage = 2
        else:
            self._complete(each, draw)

    def _again(self, each: _Open) -> None:
        held = each.held.retry()
        self.log(f"retry {api.picked(held)}")
        self._open.append(_Open(held, each.tokens, each.router))

    def _serve(self, each: _Open) -> None:
        """Compute the prompt on the engine, which announces its blocks."""
        key = api.halves(each.held)[0].key
        if each.tokens is not None and key in self.engines:
            each.cached, events = self.engines[key].serve(each.tokens)
            self.announce(key, events)

    def _complete(self, each: _Open, draw: Random) -> None:
        self._open.remove(each)
        if draw.random() < 0.3:
            self._explain(each.held)
        usage: dict[str, Any] = {}
        if each.cached is not None and draw.random() < 0.8:
            usage = {"cached_tokens": each.cached, "prompt_tokens": len(each.tokens or ())}
        if draw.random() < 0.5:
            usage["output_tokens"] = draw.randrange(300)
        if draw.random() < 0.1 and each.tokens is not None:
            usage["output_ids"] = list(range(5, 45))
        each.held.on_complete(**usage)

    def _explain(self, held: api.Held) -> None:
        for half in api.halves(held):
            self._lines.extend(f"    {line}" for line in api.views(half.explain()))

    # --- the fleet ---

    def announce(self, key: str, events: list[Any]) -> None:
        """Apply the events of a worker; w0 has no stream, and w3 has ranks."""
        if not self.scene.events or not events or key in {"w0", "new"}:
            return
        seq, data = self.engines[key].message(events)
        if self.scene.lost and Random(f"{key} {seq}").random() < 0.05:
            return
        rank = 0 if key == "w3" else None
        self.each(lambda router: router.apply_events(key, data, seq, rank))

    def _change(self, draw: Random, step: int) -> None:
        """Change the fleet and what is known of it."""
        for every, at, change in _CHANGES:
            if step % every == at:
                change(self, draw, step)

    def each(self, call: Callable[[api.Subject], object]) -> None:
        """Do something to every router."""
        for router in self.routers:
            self._try(lambda router=router: call(router))  # type: ignore[misc]

    def _exchange(self, draw: Random, step: int) -> None:
        """Carry what routers that share their state publish."""
        if len(self.routers) < 2 or step % 3:
            return
        for sender in self.routers:
            messages = sender.publish()
            for receiver in self.routers:
                if receiver is sender:
                    continue
                lost = self.scene.lost and draw.random() < 0.1
                missing = False
                for message in messages[lost:]:
                    missing |= receiver.receive(message)
                if missing:
                    self.log("a snapshot")
                    for message in sender.publish(everything=True):
                        receiver.receive(message)


# --- changes of the fleet ---


def _report(player: Player, draw: Random, step: int) -> None:
    if step % 200 < 100:
        return  # Nothing fresh is known.
    for key in WORKERS[: draw.randrange(6)]:
        report: dict[str, Any] = {
            "running": draw.randrange(8),
            "waiting": draw.randrange(4),
            "queued_tokens": draw.randrange(3000),
            "kv_usage": draw.choice((0.1, 0.5, 0.9, 0.98)),
            "prefill_tps": draw.choice((3000.0, 9000.0)),
            "gen_tps": draw.choice((500.0, 2000.0)),
            "age_s": draw.choice((0.0, 0.1, 1.0)),
        }
        for name in draw.sample(sorted(report), draw.randrange(3)):
            del report[name]
        player.each(lambda router, key=key, report=report: router.report(key, report))  # type: ignore[misc]


def _check_health(player: Player, draw: Random, _step: int) -> None:
    key, answered = draw.choice(WORKERS), draw.random() < 0.5
    player.each(lambda router: router.health(key, answered))


def _pause(player: Player, draw: Random, _step: int) -> None:
    key = draw.choice(WORKERS)
    player.each(lambda router: router.ready(key, False))


def _resume(player: Player, _draw: Random, _step: int) -> None:
    for key in WORKERS:
        player.each(lambda router, key=key: router.ready(key, True))  # type: ignore[misc]


def _join(player: Player, _draw: Random, _step: int) -> None:
    player.each(lambda router: player.add(router, "new"))


def _leave(player: Player, _draw: Random, step: int) -> None:
    player.each(lambda router: router.remove("new", drain=step % 2 == 0))


def _restart(player: Player, _draw: Random, _step: int) -> None:
    player.announce("w1", player.engines["w1"].clear())
    player.engines["w4"].clear()
    player.each(lambda router: router.reset_cache("w4"))


def _learn(player: Player, _draw: Random, step: int) -> None:
    player.each(lambda router: router.learn("w2", player.scene.blocks, 32 if step % 2 else 16))


def _end_session(player: Player, draw: Random, _step: int) -> None:
    session = f"session{draw.randrange(40)}"
    player.each(lambda router: router.finish_session(session))


def _wait(player: Player, _draw: Random, _step: int) -> None:
    player.clock.now_s += 30.0


def _offload(player: Player, draw: Random, _step: int) -> None:
    tokens, medium = request(draw, only_tokens=True)["tokens"], draw.choice(("CPU", "DISK"))
    player.announce("w2", player.engines["w2"].offload(tokens, medium))


_CHANGES: tuple[tuple[int, int, Callable[[Player, Random, int], None]], ...] = (
    (4, 0, _report),
    (9, 5, _check_health),
    (37, 8, _offload),
    (61, 11, _pause),
    (61, 19, _resume),
    (73, 50, _end_session),
    (83, 47, _learn),
    (89, 40, _restart),
    (97, 23, _join),
    (97, 61, _leave),
    (113, 80, _wait),
)
"""Period, phase and function of each change, in requests."""
