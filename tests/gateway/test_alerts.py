"""The alert rules and the dashboard that users load name metrics, labels and states that there are."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.gateways import serving
from tests.http_client import send

import cachelb
from cachelb.metrics.families import families
from cachelb_fakes import FakeFleet

ROOT = Path(__file__).resolve().parents[2]
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "examples" / "prometheus-alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
}
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "cachelb.json").read_text("utf-8"))
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
QUERIES = {alert: rule["expr"] for alert, rule in RULES.items()} | {
    f"{title} {target['refId']}": target["expr"] for title, panel in PANELS.items() for target in panel["targets"]
}
PAGE = ROOT / "docs" / "observability.md"
NAME = re.compile(r"cachelb_\w+")
LABEL = re.compile(r"(\w+)[=!]")
SELECTOR = re.compile(r"(cachelb_\w+)\{([^}]*)\}")
GROUPS = re.compile(r"\bby\(([^)]*)\)")
TARGET_LABELS = {"instance", "le"}  # of every scrape, and of histograms
TYPE = re.compile(r"^# TYPE (\w+) (\w+)$", re.MULTILINE)


@cache
def page_of_a_gateway() -> str:
    """Return the page of a running gateway that has answered a stream and refused a body."""
    body = {"prompt": "a", "max_tokens": 1, "stream": True}
    bodies = cachelb.RequestBodies(strict=True)
    with FakeFleet(1) as fleet, serving(cachelb.Router(fleet.urls, bodies=bodies)) as served:
        assert send(served.url, "/v1/completions", body).status == 200
        assert send(served.url, "/v1/completions", b"no JSON").status == 400
        return send(served.admin_url, "/metrics").body.decode()


def exported() -> dict[str, str]:
    """Give the kind of every metric that a page can show."""
    kinds = dict(TYPE.findall(page_of_a_gateway()))
    buckets = {f"{name}_bucket": "bucket" for name, kind in kinds.items() if kind == "histogram"}
    return kinds | buckets


@pytest.mark.parametrize("text", [*QUERIES.values(), PAGE.read_text("utf-8")])
def test_metrics_exist(text: str) -> None:
    assert set(NAME.findall(text)) <= set(exported())


@pytest.mark.parametrize("query", QUERIES)
def test_labels_exist(query: str) -> None:
    labels = {f"cachelb_{family.name}": set(family.labels) for family in families(cachelb.Router(["gpu0"]).stats())}
    for name, found in SELECTOR.findall(page_of_a_gateway()):
        labels.setdefault(name.removesuffix("_total"), set(LABEL.findall(found)))
    for name, matchers in SELECTOR.findall(QUERIES[query]):
        known = labels.get(name.removesuffix("_total"), set()) | TARGET_LABELS
        assert set(LABEL.findall(matchers)) <= known
        for group in GROUPS.findall(QUERIES[query]):
            assert set(group.split(", ")) <= known


def test_dashboard_has_every_metric_of_the_gateway() -> None:
    shown = {name for query in QUERIES.values() for name in NAME.findall(query)}
    own = {name for name, kind in exported().items() if name.startswith("cachelb_gateway_") and kind != "histogram"}
    assert len(own) == 7
    assert own <= shown


@pytest.mark.parametrize("query", QUERIES)
def test_counters_are_looked_at_by_their_rate(query: str) -> None:
    kinds, expression = exported(), QUERIES[query]
    for match in NAME.finditer(expression):
        rated = re.search(r"(rate|increase)\($", expression[: match.start()]) is not None
        assert rated == (kinds[match[0]] in {"counter", "bucket"}), match[0]


@pytest.mark.parametrize("title", PANELS)
def test_panel_names_its_series_by_labels_that_its_query_keeps(title: str) -> None:
    for target in PANELS[title]["targets"]:
        kept = {label for group in GROUPS.findall(target["expr"]) for label in group.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_fill_the_dashboard_without_lying_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len(PANELS) == sum(panel["type"] != "row" for panel in DASHBOARD["panels"])


def test_the_page_says_what_to_do_about_each_alert() -> None:
    assert re.findall(r"^\| `(Cachelb\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE) == list(RULES)
