"""The modes of the command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benches.templates.agents import Agent
from benches.templates.cells import Claims, Share, Sum, split, true_shares
from benches.templates.engine import Engine, RefusedError
from benches.templates.fuzz import fuzz
from benches.templates.learning import PHASES, STARTS, play
from benches.templates.page import HEAD, Cell, cell_rows, figures, percent, table
from benches.templates.readers import PROBED, READERS, Options, layouts

from cachelb_lab.probe import probe_template

Truths = dict[Cell, list[tuple[float, int]]]


@dataclass(frozen=True, slots=True)
class Given:
    """The settings of a run."""

    engines: list[Engine]
    agents: list[Agent]
    readers: list[str]
    seed: int
    cells: bool


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def _truths(given: Given) -> Truths:
    """Render everything."""
    found: Truths = {}
    for number, engine in enumerate(given.engines, 1):
        _progress(f"rendered {number} of {len(given.engines)}: {engine.name}")
        for agent in given.agents:
            try:
                found[agent.name, engine.name] = true_shares(engine, agent.requests())
            except RefusedError:
                continue
    _progress("")
    left_out = len(given.engines) * len(given.agents) - len(found)
    print(f"{len(found)} cells; {left_out} left out, whose template refuses the agent", file=sys.stderr)
    return found


def options_of(engine: Engine, options: Options) -> Options:
    """Put in the options that the probe finds."""
    if PROBED not in options:
        return options
    rest = {name: value for name, value in options.items() if name != PROBED}
    return rest | probe_template(engine.templates, match=options[PROBED])


def _cell(agent: Agent, truth: list[tuple[float, int]], claims: list[float]) -> tuple[Sum, Sum]:
    shares = [Share(true, claimed, length) for (true, length), claimed in zip(truth, claims, strict=True)]
    return split(agent.requests(), shares)


def run_readers(given: Given) -> int:
    """Compare configurations of the reader."""
    truths, claims = _truths(given), Claims()
    rows: list[list[str]] = [["next turn", *HEAD]]
    firsts: list[list[str]] = [["first request of a further session", *HEAD]]
    lists = []
    for name in given.readers:
        _progress(f"reads: {name}")
        cells: dict[Cell, tuple[Sum, Sum]] = {}
        for engine in given.engines:
            options = options_of(engine, READERS[name])
            for agent in given.agents:
                if (truth := truths.get((agent.name, engine.name))) is not None:
                    cells[agent.name, engine.name] = _cell(agent, truth, claims.of(agent, options, engine.model))
        rows.append([name, *figures([turns for turns, _ in cells.values()])])
        firsts.append([name, *figures([first for _, first in cells.values() if first.length])])
        lists.append((name, cells))
    _progress("")
    if given.cells:
        for name, cells in lists:
            print(f"\n{name}\n{table(cell_rows(cells))}")
    print(f"\n{table(rows)}\n\n{table(firsts)}")
    return 0


def _best(
    given: Given, truths: Truths, claims: Claims, every: dict[str, Options]
) -> Iterator[tuple[Engine, str, dict[Cell, tuple[Sum, Sum]]]]:
    """Yield the layout of each template with the highest found - 2 x false."""
    for number, engine in enumerate(given.engines, 1):
        _progress(f"layouts: {number} of {len(given.engines)}: {engine.name}")
        scored = []
        for name, options in every.items():
            cells = {
                (agent.name, engine.name): _cell(agent, truth, claims.of(agent, options))
                for agent in given.agents
                if (truth := truths.get((agent.name, engine.name))) is not None
            }
            sums = [each for pair in cells.values() for each in pair if each.length]
            score = sum(each.found_share - 2 * each.false_share for each in sums) / max(1, len(sums))
            scored.append((score, name, cells))
        score, name, cells = max(scored, key=lambda entry: entry[0])
        yield engine, f"{name} ({score:.3f})", cells
    _progress("")


def run_layouts(given: Given) -> int:
    """Find the best layout of each template by all transcripts."""
    truths, claims = _truths(given), Claims()
    best = list(_best(given, truths, claims, layouts()))
    rows = [["template", "layout (score)", *HEAD[:6]]]
    for engine, name, cells in best:
        rows.append([engine.name, name, *figures([turns for turns, _ in cells.values()])[:6]])
    everything = {cell: pair for _, _, cells in best for cell, pair in cells.items()}
    if given.cells:
        print(f"\n{table(cell_rows(everything))}")
    print(f"\n{table(rows)}\n")
    every = [turns for turns, _ in everything.values()]
    firsts = [first for _, first in everything.values() if first.length]
    print(table([["best layout of each", *HEAD], ["next turn", *figures(every)], ["first request", *figures(firsts)]]))
    return 0


def run_learning(given: Given, reports: list[str]) -> int:
    """Route with reports of cached tokens."""
    for kind in reports:
        for reader in given.readers:
            if PROBED in READERS[reader]:
                continue
            cells: dict[str, dict[Cell, tuple[Sum, Sum]]] = {phase: {} for phase in PHASES}
            grounds: dict[tuple[str, str], int] = {}
            for number, engine in enumerate(given.engines, 1):
                _progress(f"{reader}, reports {kind}: {number} of {len(given.engines)}: {engine.name}")
                played = play(engine, given.agents, READERS[reader], reports=kind, seed=given.seed)
                for (phase, agent), total in played.sums.items():
                    cells[phase][agent, engine.name] = (total, Sum())
                for key, amount in played.grounds.items():
                    grounds[key] = grounds.get(key, 0) + amount
            _progress("")
            rows = [[f"{reader}; reports: {kind}", *HEAD, "false tokens", "match_basis"]]
            for phase in PHASES:
                sums = [total for total, _ in cells[phase].values()]
                tokens = sum(each.false for each in sums) / max(1, sum(each.length for each in sums))
                basis = ", ".join(f"{name} {amount}" for (at, name), amount in sorted(grounds.items()) if at == phase)
                rows.append([phase, *figures(sums), percent(tokens), basis])
                if given.cells:
                    print(f"\n{reader}; reports: {kind}; {phase}\n{table(cell_rows(cells[phase]))}")
            print(f"\n{table(rows)}")
    return 0


def run_starts(given: Given, answers: int) -> int:
    """Begin with the layouts of other models; 1 if a template is worse than with its own after 20 answers."""
    rows = [["template", "starts", "good", "found with its own", "worst", "false with its own", "worst", "worst start"]]
    worse = 0
    for number, engine in enumerate(given.engines, 1):
        _progress(f"starts: {number} of {len(given.engines)}: {engine.name}")
        shares: dict[str, tuple[float, float]] = {}
        for name in (engine.model, *STARTS):
            engine.model = name
            played = play(engine, given.agents, {}, reports="usual", seed=given.seed, most=answers)
            sums = [total for (phase, _), total in played.sums.items() if phase == PHASES[3]]
            shares[name] = (
                sum(each.found_share for each in sums) / len(sums),
                sum(each.false_share for each in sums) / len(sums),
            )
        (found, false), *others = shares.values()
        good = [each for each in others if each[0] >= min(0.95, found - 0.02) and each[1] <= max(0.02, false + 0.01)]
        worse += len(good) < len(others)
        worst = min(shares, key=lambda name: shares[name][0] - 2 * shares[name][1])
        rows.append(
            [
                engine.name,
                str(len(others)),
                str(len(good)),
                percent(found),
                percent(min(each[0] for each in others)),
                percent(false),
                percent(max(each[1] for each in others)),
                worst,
            ]
        )
    _progress("")
    print(f"\n{table(rows)}\n\n{worse} templates with a start that is not left within 20 answers")
    return int(worse > 0)


def run_fuzz(given: Given, pairs: int) -> int:
    """Compare random dialogues under the options that the probe is certain of; 1 if a claim is false."""
    rows = [["template", "pairs", "refused", "shared", "found", "false claims", "options"]]
    failed = 0
    for number, engine in enumerate(given.engines, 1):
        _progress(f"fuzz: {number} of {len(given.engines)}: {engine.name}")
        options = options_of(engine, READERS["certain, vllm, probed"])
        result = fuzz(engine, options, pairs=pairs, seed=given.seed)
        failed += result.false
        shown = ", ".join(f"{name}={value}" for name, value in options.items() if name not in ("engine", "match"))
        rows.append(
            [
                engine.name,
                str(result.pairs),
                str(result.refused),
                str(result.shared),
                percent(result.found),
                str(result.false),
                shown,
            ]
        )
        for example in result.examples if given.cells else ():
            print(f"\n{engine.name}: {example}")
    _progress("")
    print(f"\n{table(rows)}\n\n{failed} false claims")
    return int(failed > 0)
