"""Sources of workers from texts, configurations and the environment, and their metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from cachelb import Router
from cachelb.errors import ConfigError
from cachelb.metrics.families import families
from cachelb_gateway import config
from cachelb_gateway.discovery import FileWorkers, from_text

TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dns:vllm.llm.svc:8000": ("dns", {"name": "vllm.llm.svc", "port": 8000}),
    "srv:_http._tcp.vllm": ("dns", {"name": "_http._tcp.vllm"}),
    "file:/a:b/c.json": ("file", {"path": "/a:b/c.json"}),
    "kubernetes:vllm": ("kubernetes", {"service": "vllm"}),
    "kubernetes:llm/vllm:http,9000": ("kubernetes", {"service": "vllm", "namespace": "llm", "port": ("http", "9000")}),
    "pods:llm/app.kubernetes.io/name=a,b in (c, d):8000": (
        "kubernetes",
        {"selector": "app.kubernetes.io/name=a,b in (c, d)", "namespace": "llm", "port": "8000"},
    ),
    "pods:app=a": ("kubernetes", {"selector": "app=a"}),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_and_a_table_make_the_same_source(text: str) -> None:
    kind, options = TEXTS[text]
    loaded = config.load({"discovery": text}, environ={}).discovery
    assert loaded == (config.DiscoveryConfig(kind, options),)
    assert config.load({"discovery": [{"kind": kind, **options}]}, environ={}).discovery == loaded
    assert repr(from_text(text)) == repr(loaded[0].make())


@pytest.mark.parametrize("text", ["", "dns:a", "dns:a:b", "srv:", "file:", "kubernetes:", "consul:a", "pods:a:b:c"])
def test_another_text_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"a source of workers is dns:NAME:PORT, .* or pods:\[NAMESPACE/\]SELECTOR"):
        from_text(text)


def test_the_router_of_a_configuration_finds_workers(tmp_path: Path) -> None:
    (tmp_path / "workers.json").write_text(json.dumps([{"targets": ["gpu1:8000"]}]))
    table = {"kind": "file", "path": str(tmp_path / "workers.json"), "worker_options": {"weight": 2.0}}
    with config.load({"workers": ["http://gpu0:8000"], "discovery": table}, environ={}).build() as router:
        wait_until(lambda: len(router.keys()) == 2)
        assert {row.key: row.weight for row in router.stats().workers} == {
            "http://gpu0:8000": 1.0,
            "http://gpu1:8000": 2.0,
        }


def test_the_environment_replaces_the_sources_of_the_file() -> None:
    data = {"discovery": ["file:a.json", "file:b.json"]}
    for text, kinds in (("dns:a:80", ["dns"]), ('["dns:a:80", "pods:app=a,b=c"]', ["dns", "kubernetes"])):
        loaded = config.load(data, environ={"CACHELB_DISCOVERY": text})
        assert [source.kind for source in loaded.discovery] == kinds
        assert loaded.origins["discovery[0].kind"] == "env CACHELB_DISCOVERY"
    shown = {row.path: row.value for row in config.show(loaded)}
    assert (shown["discovery[1].selector"], shown["discovery[0].max_ttl_s"]) == ("app=a,b=c", 30.0)


@pytest.mark.parametrize(
    ("discovery", "message"),
    [
        ("dns:a", "mapping: discovery: a source of workers is dns:NAME:PORT"),
        ({"name": "a"}, "mapping: discovery: names no kind; add one of kubernetes, dns, file as kind"),
        ({"kind": "consul"}, "mapping: discovery.kind: there is no kind 'consul', but kubernetes, dns, file"),
        ([{"kind": "dns"}], "mapping: discovery[0].kind: a source of kind 'dns' needs name"),
        ({"kind": "dns", "nam": "a"}, "mapping: discovery.nam: unknown key; did you mean 'name'?"),
        ({"kind": "dns", "name": "a", "port": 0}, "mapping: discovery.port: port must be at least 1, got 0"),
        ({"kind": "kubernetes"}, "mapping: discovery.kind: give either service or selector"),
        (3, "mapping: discovery: must be a table of keys and values, not a number"),
    ],
)
def test_mistakes_name_their_place(discovery: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.load({"discovery": discovery}, environ={})
    assert str(error.value).startswith(message)


def test_a_source_that_cannot_start_stops_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    loaded = config.load({"discovery": [f"file:{tmp_path / 'a.json'}", "kubernetes:vllm"]}, environ={})
    with pytest.raises(ValueError, match="not in a pod"):
        loaded.build()


def test_sources_have_metrics_and_two_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    path.write_text(json.dumps([{"targets": ["a:1", "b:1", "c:1"]}]))
    with Router[str]() as router:
        sources = [FileWorkers(path, interval_s=0.01, drop_wait_s=3600) for _ in range(2)]
        for source in sources:
            router.attach(source)
        wait_until(lambda: all(source.stats().found == 3 for source in sources))
        path.write_text(json.dumps([{"targets": ["a:1"]}]))
        wait_until(lambda: all(source.stats().waiting == 2 for source in sources))
        path.write_text("broken")
        wait_until(lambda: all(source.stats().failing for source in sources))
        rows = {family.name: dict(family.rows) for family in families(router.stats())}
    for name in (f"file:{path}", f"file:{path}#2"):
        assert rows["discovery_workers"][name, "found"] == 1
        assert rows["discovery_workers"][name, "waiting"] == 2
        assert rows["discovery_drop_waits"][name,] == 1
        assert rows["discovery_failures"][name,] >= 1
        assert rows["discovery_answers"][name,] >= 2
        assert 0 <= rows["discovery_answer_age_seconds"][name,] < 120
