"""The LiteLLM callback by itself: deployments are dicts, and its hooks are called as LiteLLM calls them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry
from tests.library.integrations.litellm_host import PROMPT, deployment, messages
from tests.support_gateways import endings

from cachelb import NoWorkerAvailable
from cachelb.integrations.litellm import CachelbCallback
from cachelb.testing import ManualClock

POOL = [deployment(key, f"http://{key}:8000") for key in ("a", "b", "c")]


class Host:
    """Calls the hooks."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.callback = CachelbCallback(clock=self.clock, **{"seed": 1} | options)

    def filter(self, deployments: Any = POOL, text: str | None = PROMPT, **request: Any) -> list[str]:
        """Return the ids that are left."""
        return [left["model_info"]["id"] for left in self.filter_as_is(deployments, text, request)]

    def filter_as_is(self, deployments: Any, text: str | None, request: Any) -> list[dict[str, Any]]:
        asked = None if text is None else messages(text)
        return asyncio.run(self.callback.async_filter_deployments("m", deployments, asked, request))

    def begin(self, call: str, log: object = None) -> None:
        begun = {"litellm_call_id": call, "litellm_logging_obj": log}
        assert asyncio.run(self.callback.async_pre_call_deployment_hook(begun, None)) is None

    def succeed(self, call: str, response: object = None, **kwargs: Any) -> None:
        kwargs |= {"litellm_call_id": call}
        asyncio.run(self.callback.async_log_success_event(kwargs, response, None, None))

    def fail(self, call: str, error: Exception) -> None:
        asyncio.run(self.callback.async_post_call_failure_deployment_hook({"litellm_call_id": call}, error, None))
        logged = {"litellm_call_id": call, "exception": error}
        asyncio.run(self.callback.async_log_failure_event(logged, None, None, None))

    @property
    def endings(self) -> dict[str, int]:
        return endings(self.callback.router)

    @property
    def open(self) -> int:
        return self.callback.router.stats().open_requests


def failure(status: int) -> Exception:
    error = Exception("planned")
    error.status_code = status  # type: ignore[attr-defined]
    return error


# --- what is picked ---


@pytest.mark.parametrize(("text", "request_kwargs"), [(PROMPT, {}), (None, None)], ids=["all", "nothing"])
def test_one_deployment_is_left_and_it_is_litellms_own_object(text: str | None, request_kwargs: Any) -> None:
    host = Host()
    (left,) = host.filter_as_is(POOL, text, request_kwargs)
    assert any(left is known for known in POOL)
    assert host.callback.fallbacks.total() == 0


def test_deployment_in_cooldown_comes_back_with_what_it_holds() -> None:
    host = Host()
    home = host.filter(litellm_call_id="1")
    host.succeed("1")
    others = [entry for entry in POOL if [entry["model_info"]["id"]] != home]
    assert host.filter(others, text="another " * 60, litellm_call_id="2") != home
    host.succeed("2")
    assert host.filter(litellm_call_id="3") == home
    host.succeed("3")
    assert host.callback.router.records.recent(1)[0].matched_tokens > 400


def test_load_counts() -> None:
    host = Host(policy="least-loaded")
    assert sorted(key for _ in range(6) for key in host.filter()) == ["a", "a", "b", "b", "c", "c"]


@pytest.mark.parametrize(
    ("request_kwargs", "left"),
    [
        ({"_excluded_deployment_ids": ["a", "b"]}, "c"),
        ({"_retry_skipped_deployment_ids": ("a", "c")}, "b"),
        ({"metadata": {"attempted_retries": 1, "previous_models": ({"deployment_id": "b"},)}}, "ac"),
        ({"litellm_metadata": {"attempted_retries": 1, "previous_models": ({"deployment_id": "b"},)}}, "ac"),
        ({"metadata": {"attempted_retries": 3, "previous_models": [{"deployment_id": key} for key in "abc"]}}, "abc"),
        ({"metadata": {"attempted_retries": 0, "previous_models": ({"deployment_id": "b"},)}}, "abc"),
        ({"metadata": {"attempted_retries": 1, "previous_models": "b"}}, "abc"),
    ],
    ids=["excluded", "skipped", "tried", "tried-elsewhere", "tried-all", "tried-by-another-request", "not-litellms"],
)
def test_deployments_litellm_would_drop_again_are_not_picked(request_kwargs: dict[str, Any], left: str) -> None:
    host = Host(policy="round-robin")
    assert {host.filter(**dict(request_kwargs))[0] for _ in range(9)} == set(left)


def test_only_the_lowest_order_is_picked_from_and_the_order_of_a_failover() -> None:
    pool = [deployment("a", order=2), deployment("b", order=1), deployment("c"), deployment("d", order=1)]
    host = Host(policy="round-robin")
    assert {host.filter(pool)[0] for _ in range(8)} == {"b", "d"}
    assert {host.filter(pool, _target_order=2)[0] for _ in range(3)} == {"a"}


# --- where LiteLLM decides ---


@pytest.mark.parametrize(
    ("pool", "request_kwargs", "reason"),
    [
        ([], {}, "no-candidates"),
        (POOL, {"_excluded_deployment_ids": ["a", "b", "c"]}, "no-candidates"),
        ([{"model_name": "m", "litellm_params": {}}], {}, "no-candidates"),
        ([deployment("a", tags=["paid"]), deployment("b")], {}, "tags"),
    ],
    ids=["empty", "all-excluded", "no-id", "tags"],
)
def test_list_comes_back_as_it_is_with_a_reason(
    pool: list[dict[str, Any]], request_kwargs: dict[str, Any], reason: str
) -> None:
    host = Host()
    assert host.filter_as_is(pool, PROMPT, request_kwargs) is pool
    assert host.callback.fallbacks == {reason: 1}
    assert host.open == 0


def test_equal_tags_are_no_obstacle() -> None:
    assert len(Host().filter([deployment(key, tags=["paid"]) for key in "ab"])) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(NoWorkerAvailable({"a": "not ready"}), "no-worker"), (RuntimeError("the prompt: secret"), "error")],
    ids=["nobody", "bug"],
)
def test_failure_in_the_hook_leaves_the_list_unchanged(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host()
    monkeypatch.setattr(host.callback, "router", Mock(select_worker=Mock(side_effect=error)))
    for _ in range(2):
        assert host.filter_as_is(POOL, PROMPT, {}) is POOL
    assert host.callback.fallbacks == {reason: 2}
    assert len(caplog.records) == (reason == "error")
    assert "secret" not in caplog.text


def test_unreadable_prompt_is_routed_by_load() -> None:
    callback = Host(policy="least-loaded").callback
    bad: list[Any] = [{"role": "user", "content": {PROMPT}}]
    assert len(asyncio.run(callback.async_filter_deployments("m", POOL, bad, {}))) == 1
    assert callback.unread == 1


@pytest.mark.parametrize("prompt", [None, "text " * 40, ["text " * 40, "more"], list(range(64))])
def test_request_without_messages_is_routed_by_its_input(prompt: object) -> None:
    host = Host()
    home = host.filter(text=None, litellm_call_id="1", input=prompt)
    host.succeed("1")
    again = host.filter(text=None, litellm_call_id="2", input=prompt)
    assert host.callback.unread == 0
    if prompt is not None:
        assert again == home


@pytest.mark.parametrize(
    "request_kwargs",
    [
        {"litellm_session_id": "talk"},
        {"metadata": {"session_id": "talk"}},
        {"proxy_server_request": {"headers": {"x-session-id": "talk"}}},
        {"session_id": "talk"},
    ],
    ids=["litellm", "metadata", "header", "body"],
)
def test_session_stays_with_one_deployment(request_kwargs: dict[str, Any]) -> None:
    host = Host(policy="session")
    homes = []
    for turn in range(24):
        homes += host.filter(
            text=f"{turn}", litellm_call_id="1", **(request_kwargs if turn < 12 else {"session_id": f"{turn}"})
        )
        host.succeed("1")
    assert len(set(homes[:12])) == 1
    assert len(set(homes)) == 3


# --- bookings ---


def test_call_gets_an_id_that_is_its_own() -> None:
    host = Host()
    requests: list[dict[str, Any]] = [{}, {}]
    for request in requests:
        host.filter_as_is(POOL, PROMPT, request)
    first, second = (request["litellm_call_id"] for request in requests)
    assert first != second
    for _ in range(2):
        host.succeed(first)
        assert host.open == 1


def test_second_attempt_of_a_call_replaces_the_booking_and_goes_elsewhere() -> None:
    host = Host()
    first = host.filter(litellm_call_id="1")
    second = host.filter(litellm_call_id="1")
    assert first != second
    assert host.callback.router.loads() == {"a": 0, "b": 0, "c": 0} | {second[0]: 1}
    host.succeed("1")
    assert host.endings == {"cancelled": 1, "completed": 1}


FAILURES = {400: "client", 429: "backpressure", 500: "failed", 408: "failed", None: "failed"}


@pytest.mark.parametrize(("status", "ending"), FAILURES.items())
def test_failure_is_told_once_and_by_its_kind(status: int | None, ending: str) -> None:
    host = Host()
    host.filter(litellm_call_id="1")
    for _ in range(2):
        host.fail("1", failure(status) if status else ConnectionError())
    assert host.endings == {ending: 1}


def test_event_of_an_unknown_call_is_ignored() -> None:
    host = Host()
    host.filter(litellm_call_id="1")
    host.succeed("2")
    host.fail("2", failure(500))
    asyncio.run(host.callback.async_log_success_event({}, None, None, None))
    asyncio.run(host.callback.async_log_failure_event({}, None, None, None))
    host.begin("9", Log())
    assert asyncio.run(host.callback.async_pre_call_deployment_hook({}, None)) is None
    assert host.open == 1


def test_answer_from_litellms_own_cache_is_not_the_workers() -> None:
    host = Host()
    host.filter(litellm_call_id="1")
    host.succeed("1", cache_hit=True)
    assert host.endings == {"cancelled": 1}


def usage(cached: object, prompt: object = 64, output: object = 3) -> object:
    told = {"prompt_tokens_details": SimpleNamespace(cached_tokens=cached), "completion_tokens": output}
    return SimpleNamespace(usage=SimpleNamespace(prompt_tokens=prompt, **told))


@pytest.mark.parametrize(
    ("response", "streamed", "told"),
    [
        (usage(48), False, (48, 3)),
        (usage(0), True, (0, 3)),
        (usage(None), False, (None, 3)),
        (usage(None), True, (None, None)),
        (usage("many", "some", None), False, (None, None)),
        (None, False, (None, None)),
    ],
    ids=["whole", "stream", "not-told", "counted-by-litellm", "nonsense", "nothing"],
)
def test_usage_is_what_the_engine_counted(response: object, streamed: bool, told: tuple[object, object]) -> None:
    host = Host()
    host.filter(litellm_call_id="1")
    host.succeed("1", response, stream=streamed)
    (record,) = host.callback.router.records.recent(1)
    assert (record.cached_tokens, record.output_tokens or None) == told


def test_request_without_an_outcome_expires_as_abandoned() -> None:
    host = Host(deadline_s=60)
    for call in "123":
        host.filter(litellm_call_id=call)
        host.clock.advance(30 if call < "3" else 0)
    assert host.callback.expired == 1
    assert host.endings == {"abandoned": 1}
    host.succeed("1")
    host.succeed("2")
    assert host.endings == {"abandoned": 1, "completed": 1}


class Log:
    """Stands for what LiteLLM logs a call with, and reports its first token to."""

    def update_completion_start_time(self, at: object) -> None: ...


def test_request_that_litellm_drops_is_cancelled_and_a_later_one_is_not() -> None:
    host = Host()
    log = Log()
    for _ in range(2):  # the second attempt is logged by the same object
        host.filter(litellm_call_id="1")
        host.begin("1", log)
    host.filter(litellm_call_id="2")
    del log
    assert (host.endings, host.open) == ({"cancelled": 2}, 1)
    host.succeed("1")
    assert host.endings == {"cancelled": 2}


def test_the_object_of_an_earlier_attempt_cancels_nothing() -> None:
    host = Host()
    logs = [Log(), Log()]
    for log in logs:
        host.filter(litellm_call_id="1")
        host.begin("1", log)
    del log, logs[0]
    assert (host.endings, host.open) == ({"cancelled": 1}, 1)
    logs.clear()
    assert (host.endings, host.open) == ({"cancelled": 2}, 0)


def test_deployment_that_is_gone_is_forgotten_in_the_end() -> None:
    host = Host(forget_after_s=100)
    host.filter(litellm_call_id="1")
    host.succeed("1")
    for _ in range(5):
        host.clock.advance(30)
        host.filter(POOL[:2], litellm_call_id="2")
        host.succeed("2")
    assert host.callback.router.keys() == ["a", "b"]
    assert host.callback.metrics_url("a") == "http://a:8000/metrics"
    assert host.callback.metrics_url("d") is None


def test_counters_are_on_the_page_of_a_registry() -> None:
    host = Host()
    host.callback.fallbacks.update({"tags": 2, "error": 1})
    host.callback.unread, host.callback.expired = 3, 4
    registry = CollectorRegistry(auto_describe=True)  # as the default one
    host.callback.export(registry)
    assert registry.get_sample_value("cachelb_litellm_fallbacks_total", {"reason": "tags"}) == 2
    assert registry.get_sample_value("cachelb_litellm_unread_total") == 3
    assert registry.get_sample_value("cachelb_litellm_expired_total") == 4
    assert registry.get_sample_value("cachelb_open_requests") == 0
    with pytest.raises(ValueError, match="cachelb_"):
        CachelbCallback().export(registry)


# --- the class ---


def test_litellm_takes_it_for_a_callback() -> None:
    from litellm.integrations.custom_logger import CustomLogger

    class Own(CachelbCallback):
        pass

    for made in (CachelbCallback(seed=1), Own(seed=1)):
        assert isinstance(made, CustomLogger)
    assert isinstance(Own(), Own)
    assert type(CachelbCallback()).__name__ == "CachelbCallback"


@pytest.mark.parametrize("options", [{"deadline_s": 0}, {"forget_after_s": -1}, {"policy": "no-such"}])
def test_bad_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"deadline_s|forget_after_s|no-such"):
        CachelbCallback(**options)
