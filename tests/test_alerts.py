"""The alert rules and the dashboard that users load name metrics, labels and states that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

import cachelb
from cachelb.metrics import PrometheusCollector
from cachelb.metrics.families import families

ROOT = Path(__file__).resolve().parent.parent
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
PAGE = ROOT / "docs" / "metrics-and-alerts.md"
NAME = re.compile(r"cachelb_\w+")
LABEL = re.compile(r"(\w+)[=!]")
SELECTOR = re.compile(r"(cachelb_\w+)\{([^}]*)\}")
GROUPS = re.compile(r"\bby\(([^)]*)\)")
TARGET_LABELS = {"instance", "le"}  # of every scrape, and of histograms
TYPE = re.compile(r"^# TYPE (\w+) (\w+)$", re.MULTILINE)


def exported() -> dict[str, str]:
    """Give the kind of every metric that a page of the router can show."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(cachelb.Router(["gpu0"])))
    kinds = dict(TYPE.findall(generate_latest(registry).decode()))
    buckets = {f"{name}_bucket": "bucket" for name, kind in kinds.items() if kind == "histogram"}
    return kinds | buckets


@pytest.mark.parametrize("text", [*QUERIES.values(), PAGE.read_text("utf-8")])
def test_metrics_exist(text: str) -> None:
    assert set(NAME.findall(text)) <= set(exported())


@pytest.mark.parametrize("query", QUERIES)
def test_labels_exist(query: str) -> None:
    labels = {f"cachelb_{family.name}": set(family.labels) for family in families(cachelb.Router(["gpu0"]).stats())}
    for name, matchers in SELECTOR.findall(QUERIES[query]):
        known = labels.get(name.removesuffix("_total"), set()) | TARGET_LABELS
        assert set(LABEL.findall(matchers)) <= known
        for group in GROUPS.findall(QUERIES[query]):
            assert set(group.split(", ")) <= known


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
