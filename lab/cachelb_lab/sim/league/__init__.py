"""A league of policies: over traces, fleets, loads and faults, how far each is from the best of its cell.

Example:
    >>> from cachelb_lab.sim.league import League, play
    >>> league = League(("chat(count=120)",), ("2xl40s",), loads=(0.7, 0.95))
    >>> found = play(league, ["cache-aware", "round-robin"])
    >>> len(found), found.scores()[0].policy
    (2, 'cache-aware')
"""

from __future__ import annotations

from cachelb_lab.sim.league.cells import LOADS, Cell, League
from cachelb_lab.sim.league.documents import as_dict, markdown
from cachelb_lab.sim.league.figures import COMPARED
from cachelb_lab.sim.league.realism import REALISM, Realism
from cachelb_lab.sim.league.running import play
from cachelb_lab.sim.league.standings import Ratio, Row, Score, Standings
from cachelb_lab.sim.league.store import Store
from cachelb_lab.sim.league.traces import Trace

__all__ = [
    "COMPARED",
    "LOADS",
    "REALISM",
    "Cell",
    "League",
    "Ratio",
    "Realism",
    "Row",
    "Score",
    "Standings",
    "Store",
    "Trace",
    "as_dict",
    "markdown",
    "play",
]
