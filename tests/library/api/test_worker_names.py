"""Credentials in a worker's URL are no part of its name, and the name is all that any output shows."""

from __future__ import annotations

import asyncio
import base64
import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.commands import app
from tests.gateways import wait_until
from tests.library.records.test_privacy import shown_by
from tests.models.metrics_server import FakeEngine

from cachelb import NoWorkerAvailable, Router, UnknownWorkerError, policies
from cachelb._core import worker_name
from cachelb.errors import ConfigError
from cachelb.events import Endpoint, ZmqSource
from cachelb.integrations.offered import Guest
from cachelb.sources import MetricsSource
from cachelb_gateway import config, doctor

LOGIN = "http://xyzzyUser:xyzzyWord@gpu0:8000/"
OTHER = "http://xyzzyOther:xyzzyWord2@gpu0:8000"
QUERY = "http://gpu1:8000/v1?api_key=xyzzyKey"


@dataclass(frozen=True)
class Replica:
    url: str


# --- what names are ---


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (LOGIN, "http://gpu0:8000"),
        (QUERY, "http://gpu1:8000/v1"),
        ("http://xyzzyToken@gpu0", "http://gpu0"),
        ("xyzzyUser:xyzzyWord@gpu0:8000", "gpu0:8000"),
        ("http://me:xyzzy/Word@gpu0:8000", "http://gpu0:8000"),
        ("node@rack", "node@rack"),
        ("gpu0/", "gpu0/"),
    ],
)
def test_a_name_is_the_key_without_credentials(key: str, name: str) -> None:
    router = Router([key], seed=1)
    decision = router.select_worker(tokens=range(64))
    assert decision.worker is router.workers()[0] is key
    assert [decision.key, *router.keys(), *router.loads(), worker_name(key)] == [name] * 4
    policy = policies.LeastLoaded(seed=1)
    assert policy.select_worker([key], by_load=True).key == name
    assert list(policy.loads()) == [name]


def test_the_callers_own_object_and_key_function_keep_the_credentials() -> None:
    workers = [Replica(LOGIN), Replica(QUERY)]
    for router in (Router(workers, seed=1), Router(workers, key=lambda worker: worker.url, seed=1)):
        assert router.workers() == workers
        assert router.keys() == ["http://gpu0:8000", "http://gpu1:8000/v1"]
        assert router.select_worker(exclude=[workers[0]], by_load=True).worker is workers[1]
        assert router.select_worker(among=[LOGIN], by_load=True).worker is workers[0]


def test_workers_that_differ_only_in_credentials_have_names_of_their_own() -> None:
    router = Router([LOGIN, OTHER], seed=1, policy="least-loaded")
    first, second = router.keys()
    assert len({first, second, "http://gpu0:8000"}) == 3
    assert all(name.startswith("http://gpu0:8000/~") for name in (first, second))
    assert Router([OTHER, LOGIN], seed=1).keys() == [second, first], "routers that share a seed agree, in any order"
    assert Router([LOGIN, OTHER], seed=2).keys() != [first, second], "a tag is a keyed hash"
    assert router.select_worker(exclude=[LOGIN], by_load=True).worker == OTHER
    assert router.select_worker(among=[first], by_load=True).worker == LOGIN
    router.set_ready(OTHER, ready=False)
    assert {row.key: row.state for row in router.stats().workers} == {first: "ready", second: "not ready"}
    router.remove_worker(OTHER)
    assert router.workers() == [LOGIN]
    policy = policies.LeastLoaded(seed=1)
    decisions = [policy.select_worker([LOGIN, OTHER], by_load=True) for _ in range(2)]
    assert {decision.worker for decision in decisions} == {LOGIN, OTHER}
    assert sorted(policy.loads().values()) == [1, 1]
    assert policy.select_worker([LOGIN, OTHER], exclude=[LOGIN], by_load=True).worker == OTHER


def test_a_worker_that_is_added_beside_another_gets_a_tag_and_the_other_keeps_its_name() -> None:
    router = Router([LOGIN], seed=1)
    router.add_worker(OTHER)
    first, second = router.keys()
    assert first == "http://gpu0:8000"
    assert second.startswith("http://gpu0:8000/~")
    router.add_worker(OTHER, weight=2.0)
    router.sync_workers([OTHER, LOGIN])
    assert router.keys() == [first, second]
    assert router.event_sink.key_of(OTHER) == second


def test_a_changed_password_keeps_what_is_known_of_the_worker() -> None:
    router = Router([LOGIN], seed=1)
    router.select_worker(tokens=range(64)).on_complete()
    router.sync_workers([OTHER])
    decision = router.select_worker(tokens=range(64))
    assert (decision.worker, decision.key, decision.matched_tokens) == (OTHER, "http://gpu0:8000", 48)


def test_a_worker_named_by_its_name_keeps_its_object() -> None:
    router = Router([LOGIN], seed=1)
    router.add_worker(router.keys()[0], weight=3.0)
    assert router.workers() == [LOGIN]
    assert router.stats().workers[0].weight == 3.0


def test_a_trailing_slash_makes_no_second_worker() -> None:
    router = Router(["http://a/", "http://b"], seed=1)
    assert (router.keys(), router.workers()) == (["http://a", "http://b"], ["http://a/", "http://b"])
    router.add_worker("http://a", weight=2.0)
    assert router.keys() == ["http://a", "http://b"]
    router.select_worker(tokens=range(64), among=["http://a"]).on_complete()
    router.sync_workers(["http://a", "http://b/"])
    assert router.workers() == ["http://a", "http://b/"]
    for name in ("http://a", "http://a/"):
        assert router.select_worker(tokens=range(64), among=[name]).matched_tokens == 48
        assert router.select_worker(exclude=[name], by_load=True).key == "http://b"
        router.load_sink.update_load(name, running=1)
        assert router.event_sink.apply_events(name, b"\x92\x01\x91\x91\xb0AllBlocksCleared") == 1
        router.select_worker(tokens=range(64), among=[name]).on_complete()
    router.remove_worker("http://a/")
    assert router.keys() == ["http://b"]
    with pytest.raises(ValueError, match="'http://b' occurs twice"):
        router.sync_workers(["http://b", "http://b/"])
    policy = policies.CacheAware(seed=1)
    policy.select_worker(["http://a/"], tokens=range(64)).on_complete()
    assert policy.select_worker(["http://a"], tokens=range(64)).matched_tokens == 48
    with pytest.raises(ConfigError, match="is there already"):
        config.load({"workers": ["http://a", "http://a/"]}, environ={})
    guest = Guest(forget_after_s=10, clock=lambda: 0.0, options={})
    guest._see(["http://c"], 0.0)
    guest._see(["http://c/"], 9.0)
    guest._see(["http://c/"], 15.0)
    assert guest.router.keys() == ["http://c"]


@pytest.mark.parametrize("wrong", ["abc", "http://a"])
@pytest.mark.parametrize("where", ["Router", "sync_workers", "policy", "among", "exclude"])
def test_a_single_str_is_no_collection_of_workers(wrong: str, where: str) -> None:
    router = Router(["a"], seed=1)
    call: Any = {
        "Router": lambda: Router(wrong),
        "sync_workers": lambda: router.sync_workers(wrong),
        "policy": lambda: policies.LeastLoaded().select_worker(wrong, by_load=True),
        "among": lambda: router.select_worker(among=wrong, by_load=True),
        "exclude": lambda: router.select_worker(exclude=wrong, by_load=True),
    }[where]
    with pytest.raises(TypeError, match=rf'not a single str: pass \["{wrong}"\]'):
        call()
    assert router.keys() == ["a"]


# --- what is shown ---


@pytest.mark.parametrize("policy", ["cache-aware", "session", "learned", "rendezvous"])
def test_no_output_shows_credentials_of_workers(policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    router = Router([LOGIN, OTHER, QUERY], policy=policy, shadow=["cache-aware"], seed=1)
    with caplog.at_level(logging.DEBUG):
        shown = shown_by(router, tmp_path / "d.jsonl")
        for name in (LOGIN, OTHER, QUERY):
            router.set_ready(name, ready=False)
        with pytest.raises(NoWorkerAvailable) as none:
            router.select_worker(by_load=True)
        shown += [str(none.value), repr(none.value), repr(none.value.reasons)]
        for call in (router.set_ready, router.load_sink.update_load, router.load_sink.reset_cache):
            router.sync_workers([])
            with pytest.raises(UnknownWorkerError) as unknown:
                call(LOGIN, **({"ready": True} if call == router.set_ready else {}))
            shown.append(repr(unknown.value))
    wrongs: list[Any] = [LOGIN, [LOGIN, LOGIN], [LOGIN, LOGIN[:-1]]]
    for wrong in wrongs:
        with pytest.raises((TypeError, ValueError)) as refused:
            Router(wrong)
        shown.append(str(refused.value))
    assert any("gpu0:8000" in text for text in shown)
    assert "xyzzy" not in "\n".join([*shown, caplog.text])


def test_a_policy_shows_no_credentials() -> None:
    policy = policies.LeastLoaded(seed=1)
    decision = policy.select_worker([LOGIN, OTHER], by_load=True)
    shown = [repr(decision), str(dict(decision.headers)), repr(decision.explain()), repr(policy.loads())]
    with pytest.raises(NoWorkerAvailable) as none:
        policy.select_worker([LOGIN, OTHER], among=[], by_load=True)
    with pytest.raises(ValueError, match="http://gpu0:8000/~") as twice:
        policies.LeastLoaded().select_worker([LOGIN, LOGIN], by_load=True)
    assert "xyzzy" not in "\n".join([*shown, str(none.value), str(twice.value)])


def test_messages_to_other_routers_hold_names_and_announce_no_worker_that_needs_credentials() -> None:
    router = Router([LOGIN, QUERY, "http://gpu2:8000"], hash_seed=7, seed=1)
    router._fleet.share(1, 60.0, 1 << 20, share_fleet=True)
    for at in range(3):
        router.add_worker([LOGIN, QUERY, "http://gpu2:8000"][at], weight=2.0)
        router.select_worker(tokens=range(at * 64, at * 64 + 64), among=[router.keys()[at]]).on_complete()
    messages = router._fleet.publish_all() + router._fleet.publish()
    assert b"http://gpu0:8000" in b"".join(messages)
    assert b"xyzzy" not in b"".join(messages)
    peer = Router([OTHER], hash_seed=7, seed=2)
    peer._fleet.share(2, 60.0, 1 << 20, share_fleet=True)
    for message in messages:
        peer._fleet.receive(message)
    for key, _ in peer._fleet.changes():
        peer._fleet.follow(key)
    assert peer.workers() == [OTHER, "http://gpu2:8000"], "without its credentials a worker would be of no use"
    assert peer.select_worker(tokens=range(64)).matched_tokens == 48, "both mean one worker"


def test_a_configuration_shows_no_credentials_and_builds_with_them(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_text(f'workers = ["{LOGIN}", "{QUERY}"]\n')
    loaded = config.load(path, environ={})
    with loaded.build() as router:
        assert router.workers() == [LOGIN, QUERY]
    result = CliRunner().invoke(app, ["config", "--show", str(path)])
    assert result.exit_code == 0, result.output
    assert "http://gpu0:8000" in result.output
    assert "xyzzy" not in result.output + repr(loaded)
    with pytest.raises(ConfigError) as twice:
        config.load({"workers": [QUERY, QUERY]}, environ={})
    assert "xyzzy" not in str(twice.value)


def test_the_doctor_shows_no_credentials() -> None:
    urls = ["http://xyzzyUser:xyzzyWord@127.0.0.1:9/", "http://127.0.0.1:10/v1?api_key=xyzzyKey"]
    diagnosis = asyncio.run(doctor.examine(urls))
    assert [report.worker for report in diagnosis.workers] == ["http://127.0.0.1:9", "http://127.0.0.1:10/v1"]
    assert "xyzzy" not in repr(diagnosis)
    with pytest.raises(ValueError, match=r"http://127.0.0.1:9 is named twice"):
        asyncio.run(doctor.examine([urls[0], urls[0].replace("xyzzyWord", "other")]))


# --- what needs the credentials has them ---


def test_a_polled_worker_gets_its_credentials_and_logs_do_not(caplog: pytest.LogCaptureFixture) -> None:
    with FakeEngine(b"no\n") as engine:
        host = engine.key.removeprefix("http://")
        router, source = Router([f"http://xyzzyUser:xyzzyWord@{host}"], seed=1), MetricsSource(interval_s=0.01)

        def polled_with(login: bytes) -> bool:
            expected = f"Basic {base64.b64encode(login).decode()}"
            return any(head["Authorization"] == expected for head in engine.requests)

        with router:
            router.attach(source)
            wait_until(lambda: polled_with(b"xyzzyUser:xyzzyWord"))
            wait_until(lambda: bool(source.stats().workers[f"http://{host}"].last_error))
            router.sync_workers([f"http://xyzzyUser:xyzzyNew@{host}"])
            wait_until(lambda: polled_with(b"xyzzyUser:xyzzyNew"))
            shown = repr(source.stats())
    assert host in shown + caplog.text
    assert "xyzzy" not in shown + caplog.text


def test_endpoints_are_found_by_a_key_with_credentials_and_errors_show_none() -> None:
    ZmqSource(endpoints={LOGIN: Endpoint("tcp://127.0.0.1:1")})
    with pytest.raises(TypeError) as refused:
        ZmqSource(endpoints={LOGIN: "tcp://127.0.0.1:1"})  # type: ignore[dict-item]  # the point
    assert "xyzzy" not in str(refused.value)
    assert "gpu0" in str(refused.value)


# --- the command ---


def test_the_command_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "cachelb", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: cachelb" in done.stdout
