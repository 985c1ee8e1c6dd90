"""Figures of runs: the numbers behind them, and files that need nothing else."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from cachelb.policies import POLICIES
from cachelb_lab.plots import FIGURES, curves, drawing, figures, write_figures, write_html
from cachelb_lab.sim import Comparison, FleetSpec, SimResult, Slo, build, compare, simulate

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "--><b>]]>&amp;</svg></style>",
    "_hidden $x^{$ \x1b[2J " + "long-" * 60,
)


@pytest.fixture(scope="module")
def runs() -> list[SimResult]:
    """Two policies, one of them with two seeds."""
    workload, fleet = build("chat", seed=5, count=900), FleetSpec.parse("3xa30")
    wanted = [("cache-aware", 1), ("cache-aware", 2), ("round-robin", 1)]
    return [simulate(workload, fleet, policy, seed=seed) for policy, seed in wanted]


@pytest.fixture(scope="module")
def compared() -> Comparison:
    """Four policies on 5,000 requests, one of them with exact knowledge as well."""
    return compare(
        build("chat", seed=1, count=5000, rate=30),
        FleetSpec.parse("8xa100-80"),
        ["cache-aware", "cache-aware+oracle", "least-loaded", "round-robin"],
        slo=Slo(ttft_s=0.5, tpot_s=0.05),
    )


def drawn(name: str, source: curves.Runs, width: str) -> Figure:
    """Draw a figure and lay it out."""
    inches, draw = figures.plan(name, source, width)
    with drawing._drawn(inches, draw, {}) as figure:
        figure.draw_without_rendering()
        return figure


# === numbers ===


def test_distribution_is_that_of_all_seeds(runs: list[SimResult]) -> None:
    aware, round_robin = curves.distributions(runs, "ttft_s")
    assert (aware.name, round_robin.name) == ("cache-aware", "round-robin")
    together = np.concatenate([runs[0].ttft_s, runs[1].ttft_s])
    assert len(aware.x) <= curves.CURVE_POINTS
    for x, y in zip(aware.x[::40], aware.y[::40], strict=True):
        assert (together <= x).mean() == pytest.approx(y, abs=2 / len(together))
    assert (aware.x[-1], aware.y[-1]) == (together.max(), 1.0)


def test_requests_that_are_not_served_never_meet_a_limit() -> None:
    run = simulate(build("chat", seed=5, count=300), FleetSpec.parse("2xa30"), until_s=20.0)
    (curve,) = curves.distributions([run], "e2e_s", of_all=True)
    assert 0 < curve.y[-1] == run.finished.mean() < 1


def test_ladder_descends_from_the_bounds_to_the_engine(compared: Comparison) -> None:
    ladders = curves.ladders(compared)
    cells = {cell.policy: cell.runs[0].metrics for cell in compared.cells}
    assert list(ladders) == ["cache-aware", "least-loaded", "round-robin"]
    aware = {rung: rate.mean for rung, rate in ladders["cache-aware"].items()}
    own, oracle = cells["cache-aware"], cells["cache-aware+oracle"]
    assert aware == {
        "ideal": own.infinite_rate,
        "capacity": own.bound_rate,
        "oracle": oracle.hit_rate,
        "chosen": own.predicted_rate,
        "delivered": own.hit_rate,
    }
    assert "oracle" not in ladders["round-robin"]
    assert aware["ideal"] >= aware["capacity"] > ladders["round-robin"]["delivered"].mean


def test_ladder_of_runs_spans_the_seeds(runs: list[SimResult]) -> None:
    aware = curves.ladders(runs)["cache-aware"]
    both = [run.cached_tokens.sum() / run.workload.prompt_tokens.sum() for run in runs[:2]]
    assert set(aware) == {"chosen", "delivered"}
    delivered = aware["delivered"]
    assert (delivered.low, delivered.mean, delivered.high) == pytest.approx((min(both), sum(both) / 2, max(both)))


def test_load_of_workers_adds_up(runs: list[SimResult]) -> None:
    loads = curves.loads_by_worker(runs[0])
    workload = runs[0].workload
    assert loads["requests"].tolist() == [(runs[0].worker == at).sum() for at in range(3)]
    assert loads["tokens"].sum() == workload.prompt_tokens.sum() + workload.output_tokens.sum()
    assert loads["busy s"] is runs[0].busy_s


def test_long_curves_keep_their_peaks(runs: list[SimResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "CURVE_POINTS", 7)
    least, mean, most = curves.loads(runs[0])
    load = runs[0].samples[:, :, 0] + runs[0].samples[:, :, 1]
    assert [len(curve.x) for curve in (least, mean, most)] == [7, 7, 7]
    assert (least.y.min(), most.y.max()) == (load.min(), load.max())
    assert mean.y.max() == pytest.approx(load.mean(axis=1).max())
    workers = curves.by_position("w", np.arange(100.0))
    assert (len(workers.x), workers.y.max()) == (7, 99)


# === figures ===


@pytest.mark.parametrize("width", ["page", "column"])
@pytest.mark.parametrize("name", FIGURES)
def test_legend_covers_no_axes_and_fits(name: str, width: str, compared: Comparison) -> None:
    figure = drawn(name, compared, width)
    assert figure.get_figwidth() == drawing.WIDTHS[width]
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert legend.get_texts()
    assert [axes for axes in figure.axes if axes.get_window_extent().overlaps(box)] == []
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert min(axes.get_window_extent().width for axes in figure.axes) > figure.bbox.width / 4


@pytest.mark.parametrize("count", [3, 40])
def test_workers_are_labelled_by_whole_numbers(count: int) -> None:
    run = simulate(build("chat", seed=5, count=200), FleetSpec.parse(f"{count}xa30"))
    many = [replace(run, policy=f"p{at}") for at in range(4)]
    axes = drawn("workers", many, "column").axes[-1]
    assert all(float(tick) == int(tick) for tick in axes.get_xticks())


def test_equal_runs_give_equal_files_whatever_the_settings(compared: Comparison, tmp_path: Path) -> None:
    import matplotlib as mpl

    for kind, start, names in (("svg", b"<?xml", [*FIGURES]), ("pdf", b"%PDF", ["hits"]), ("png", b"\x89PNG", ["slo"])):
        first = write_figures(tmp_path / "a", compared, kind=kind, figures=names)
        with mpl.rc_context({"font.size": 20, "svg.hashsalt": None, "lines.linewidth": 9}):
            second = write_figures(tmp_path / "b", compared, kind=kind, figures=names)
        assert [path.name for path in first] == [f"{name}.{kind}" for name in names]
        assert all(path.read_bytes().startswith(start) for path in first)
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_runs_without_a_served_request_are_drawn(tmp_path: Path) -> None:
    run = simulate(build("chat", seed=5, count=20), FleetSpec.parse("2xa30"), until_s=1e-3)
    assert not run.finished.any()
    write_html(tmp_path / "page.html", [run])
    assert (tmp_path / "page.html").read_text("utf-8").count("<svg") == len(FIGURES)


# === the page ===


class Tags(HTMLParser):
    """Names of elements, and of attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_small_and_needs_nothing_else(compared: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(path, compared, title="chat", table="policy and figures")
    page = path.read_text("utf-8")
    assert path.stat().st_size <= 500_000
    tags = Tags(page)
    assert tags.elements.isdisjoint({"script", "img", "link", "iframe", "foreignobject"})
    assert not re.search(r'(src|href)="(?!#)', page)
    assert [head for head in FIGURES.values() if f"<h2>{head}</h2>" not in page] == []
    assert all(f"{rung}: {words}" in tags.text for rung, words in curves.RUNGS.items())
    assert {"least-loaded", "worker"} <= {line.strip() for line in tags.text.splitlines()}


def test_report_of_all_policies_is_small_and_has_its_legends_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(path, compare(build("chat", seed=1, count=120), FleetSpec.parse("4xh100"), [*POLICIES]))
    page = path.read_text("utf-8")
    assert path.stat().st_size <= 500_000
    for figure in page.split("<svg")[1:]:
        found = re.search(r'viewBox="0 0 (\S+) (\S+)"', figure)
        assert found is not None
        width, height = map(float, found.groups())
        texts = re.findall(r'<text[^>]* x="(\S+)" y="(\S+)"[^>]*>([^<]*)', figure)
        assert [text for x, y, text in texts if not (0 <= float(x) < width and 0 < float(y) < height)] == []
        assert len(POLICIES) <= len({text.strip() for *_, text in texts} & {*POLICIES}) or "worker" in figure


def test_ids_in_the_page_are_unique_and_those_referred_to_exist(compared: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(path, compared)
    page = path.read_text("utf-8")
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 0
    assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', page)) <= set(ids)


def test_hostile_names_are_text(runs: list[SimResult], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(path, [replace(runs[0], policy=name) for name in HOSTILE], title=HOSTILE[0], table=HOSTILE[1])
    page = path.read_text("utf-8")
    tags = Tags(page)
    write_html(path, [replace(runs[0], policy=name) for name in "abcd"], title="t", table="t")
    harmless = Tags(path.read_text("utf-8"))
    assert "<script" not in page.lower()
    assert (tags.elements, tags.attributes) == (harmless.elements, harmless.attributes)
    assert page.count("<h1>&lt;script&gt;alert(1)&lt;/script&gt;</h1>") == 1
    assert "\x1b" not in page
    for shown in (HOSTILE[0], "onerror=alert(1)>", "]]>&amp;</svg>", "_hidden $x^{$ ?[2J"):
        assert tags.text.count(shown) >= len(FIGURES) - 1


def test_images_of_hostile_names_are_well_formed(runs: list[SimResult], tmp_path: Path) -> None:
    named = [replace(runs[0], policy=name) for name in HOSTILE]
    for path in write_figures(tmp_path, named):
        elements = {each.tag.rpartition("}")[2] for each in ET.parse(path).iter()}  # noqa: S314 - our own
        assert elements <= {"svg", "defs", "style", "metadata", "g", "path", "use", "clipPath", "rect"}


def test_wrong_calls_name_the_value(runs: list[SimResult], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run to draw"):
        write_html(tmp_path / "x.html", [])
    with pytest.raises(ValueError, match="kind must be of svg, png, pdf, got 'gif'"):
        write_figures(tmp_path, runs, kind="gif")
    with pytest.raises(ValueError, match="width must be of page, column, got 'wide'"):
        write_figures(tmp_path, runs, width="wide")
    with pytest.raises(ValueError, match=r"figures must be of ttft, .*, got 'heat'"):
        write_figures(tmp_path, runs, figures=["ttft", "heat"])


def test_missing_extra_is_named(runs: list[SimResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"install it, or cachelb-lab\[plots\]"):
        write_html(tmp_path / "x", runs)
