"""The alert rules that users load name metrics, labels and states that there are."""

from __future__ import annotations

import re
from pathlib import Path

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
PAGE = ROOT / "docs" / "metrics-and-alerts.md"
NAME = re.compile(r"cachelb_\w+")
LABEL = re.compile(r"(\w+)[=!]")
SELECTOR = re.compile(r"(cachelb_\w+)\{([^}]*)\}")
TYPE = re.compile(r"^# TYPE (\w+) (\w+)$", re.MULTILINE)


def exported() -> dict[str, str]:
    """Give the kind of every metric that a page of the router can show."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(cachelb.Router(["gpu0"])))
    kinds = dict(TYPE.findall(generate_latest(registry).decode()))
    buckets = {f"{name}_bucket": "bucket" for name, kind in kinds.items() if kind == "histogram"}
    return kinds | buckets


@pytest.mark.parametrize("text", [*(rule["expr"] for rule in RULES.values()), PAGE.read_text("utf-8")])
def test_metrics_exist(text: str) -> None:
    assert set(NAME.findall(text)) <= set(exported())


@pytest.mark.parametrize("alert", RULES)
def test_labels_exist(alert: str) -> None:
    labels = {f"cachelb_{family.name}": set(family.labels) for family in families(cachelb.Router(["gpu0"]).stats())}
    for name, matchers in SELECTOR.findall(RULES[alert]["expr"]):
        assert set(LABEL.findall(matchers)) <= labels[name.removesuffix("_total")]


@pytest.mark.parametrize("alert", RULES)
def test_counters_are_looked_at_by_their_rate(alert: str) -> None:
    kinds, expression = exported(), RULES[alert]["expr"]
    for match in NAME.finditer(expression):
        rated = re.search(r"(rate|increase)\($", expression[: match.start()]) is not None
        assert rated == (kinds[match[0]] in {"counter", "bucket"}), match[0]


def test_the_page_says_what_to_do_about_each_alert() -> None:
    assert re.findall(r"^\| `(Cachelb\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE) == list(RULES)
