"""Nothing of prompts, sessions, salts, adapters and tenants is in anything a router shows."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from tests.commands import app

from cachelb import NoWorkerAvailable, Router, policies
from cachelb.metrics import PrometheusCollector, instrument
from cachelb.records import JsonlRecords

PROMPT = "XyzzyPrompt"
SECRETS = {"session": "XyzzySession", "cache_salt": "XyzzySalt", "lora": "XyzzyLora", "tenant": "XyzzyTenant"}
TOKEN = 987_654_321
MESSAGES = [{"role": "user", "content": PROMPT}]


def shown_by(router: Router[str], path: Path) -> list[str]:
    """Use a router in every way and collect all its output."""
    shown: list[str] = []
    router.attach(JsonlRecords(path, interval_s=3600.0))
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(router))
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instrument(router, provider.get_meter("cachelb"))
    prompts: list[dict[str, Any]] = [{"tokens": [TOKEN] * 100}, {"text": PROMPT * 50}, {"messages": MESSAGES}]
    for prompt in prompts * 2:
        request = {**prompt, **SECRETS}
        decision = router.select_worker(**request)
        told = decision.explain()
        shown += [repr(decision), str(dict(decision.headers)), decision.id, repr(told)]
        shown += [str(told), told.table(), json.dumps(told.as_dict()), repr(router.explain(**request))]
        decision.on_first_token()
        other = decision.retry()
        other.on_complete(cached_tokens=1)
        pair = router.select_pair(**request, by_load=True)
        shown += [repr(pair), str(dict(pair.headers))]
        pair.cancel()
        with pytest.raises(NoWorkerAvailable) as caught:
            router.select_worker(**request, among=[])
        shown.append(str(caught.value) + repr(caught.value))
    shown += [repr(router), repr(router.stats()), repr(router.records.recent())]
    shown += [generate_latest(registry).decode(), str(reader.get_metrics_data())]
    router.close()
    provider.shutdown()
    shown.append(path.read_text())
    for options in ((), ("--json",)):
        result = CliRunner().invoke(app, ["explain", str(path), *options])
        assert result.exit_code == 0, result.output
        shown.append(result.output)
    return shown


@pytest.mark.parametrize("policy", policies.POLICIES)
def test_no_output_holds_anything_of_the_request(policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        shown = shown_by(Router(["a", "b", "c"], policy=policy, shadow=["cache-aware"]), tmp_path / "d.jsonl")
    shown.append(caplog.text)
    everything = "\n".join(shown)
    assert "Xyzzy" not in everything
    assert str(TOKEN) not in everything


@pytest.mark.parametrize(
    "request_",
    [
        {"text": PROMPT, "tokens": [TOKEN]},
        {"text": PROMPT, "cache_salt": 5},
        {"messages": [{"role": "user", "content": {PROMPT}}]},
        {"messages": PROMPT},
        {"session": SECRETS["session"], "tokens": ["1"]},
        {"tokens": [TOKEN], "lora": 5.0, "session": SECRETS["session"]},
        {"tokens": PROMPT},
        {"text": PROMPT.encode()},
    ],
)
def test_no_error_repeats_anything_of_the_request(request_: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        Router(["a"]).select_worker(**request_)
    told = str(caught.value)
    assert "Xyzzy" not in told
    assert str(TOKEN) not in told
