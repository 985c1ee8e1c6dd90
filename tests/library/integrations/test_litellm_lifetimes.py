"""How long a prompt counts as cached at a deployment: by its engine or provider, its settings, and the request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.library.integrations.litellm_host import PROMPT, deployment

from cachelb.integrations.litellm import CachelbCallback
from cachelb.testing import ManualClock

FIVE_MINUTES: dict[str, Any] = {"type": "ephemeral"}
AN_HOUR: dict[str, Any] = {"type": "ephemeral", "ttl": "1h"}


def provider(key: str, **settings: Any) -> dict[str, Any]:
    """A deployment of a provider, without an address."""
    info: dict[str, Any] = {"id": key}
    if settings:
        info["cachelb"] = settings
    return {"model_name": "m", "litellm_params": {"model": "anthropic/m"}, "model_info": info}


def engine(key: str, **settings: Any) -> dict[str, Any]:
    entry = deployment(key)
    entry["model_info"]["cachelb"] = settings
    return entry


def part(**fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": PROMPT} | fields


def user(*parts: dict[str, Any], **fields: Any) -> list[Any]:
    return [{"role": "user", "content": [*parts] or PROMPT} | fields]


def believed_for(pool: list[dict[str, Any]], messages: list[Any], **request: Any) -> int | None:
    """Return the seconds after which a prompt no longer counts as cached, None for a day or longer."""
    clock = ManualClock(1_000.0)
    callback = CachelbCallback(seed=1, clock=clock, deadline_s=1e6, forget_after_s=1e6)

    def ask(call: str) -> int:
        asked = request | {"litellm_call_id": call}
        (picked,) = asyncio.run(callback.async_filter_deployments("m", pool, messages, asked))
        assert any(picked is each for each in pool)
        found: int = callback._bookings[call].decision.matched_tokens
        return found

    for seconds in (60, 300, 600, 3_600, 86_400):
        # A use begins a lifetime, so each is tried on a router that has seen the prompt once.
        clock = ManualClock(1_000.0)
        callback = CachelbCallback(seed=1, clock=clock, deadline_s=1e6, forget_after_s=1e6)
        assert ask("1") == 0
        clock.advance(seconds - 1)
        assert ask("2") > 0
        clock.advance(seconds)
        if ask("3") == 0:
            return seconds
    return None


@pytest.mark.parametrize(
    ("messages", "request_", "seconds"),
    [
        (user(), {}, 300),
        (user(part(cache_control=FIVE_MINUTES)), {}, 300),
        (user(part(cache_control=AN_HOUR)), {}, 3_600),
        (user(part(cache_control=AN_HOUR), part(cache_control=FIVE_MINUTES)), {}, 300),
        (user(part(cache_control=AN_HOUR), part()), {}, 3_600),
        (user(cache_control=AN_HOUR), {}, 3_600),
        (user(cache_control=AN_HOUR), {"tools": [{"name": "t", "cache_control": FIVE_MINUTES}]}, 300),
        (user(cache_control=AN_HOUR), {"tools": [{"type": "function", "function": {"cache_control": AN_HOUR}}]}, 3_600),
        (user(cache_control=AN_HOUR), {"system": [part(cache_control=FIVE_MINUTES)]}, 300),
        (user(), {"system": [part(cache_control=AN_HOUR)]}, 3_600),
        (user(cache_control="1h"), {"tools": "none", "system": "text"}, 300),
    ],
    ids=[
        *("nothing-cached", "five-minutes", "an-hour", "mixed", "hour-and-uncached", "message", "message-and-tool"),
        *("message-and-function", "message-and-system", "system", "malformed"),
    ],
)
def test_provider_keeps_a_prompt_for_five_minutes_or_an_hour_if_all_blocks_ask_for_it(
    messages: list[Any], request_: dict[str, Any], seconds: int
) -> None:
    assert believed_for([provider("a"), provider("b")], messages, **request_) == seconds


@pytest.mark.parametrize(
    ("pool", "seconds"),
    [
        ([deployment("a"), deployment("b")], None),
        ([engine("a", cache_ttl_s=600)], 600),
        ([engine("a", other=1)], None),
        ([provider("a", cache_ttl_s=None)], None),
        ([provider("a", cache_ttl_s=60.0)], 60),
        ([provider("a", cache_ttl_s=86_400)], 86_400),
        ([provider("a", cache_ttl_s=86_400), provider("b")], 3_600),
    ],
    ids=["engine", "engine-that-forgets", "other-setting", "for-ever", "a-minute", "a-day", "shortest-of-two"],
)
def test_deployment_may_say_how_long_it_keeps_a_prompt(pool: list[dict[str, Any]], seconds: int | None) -> None:
    assert believed_for(pool, user(cache_control=AN_HOUR)) == seconds


@pytest.mark.parametrize("value", [0, -1, "300", True, float("nan"), float("inf"), [300]])
def test_wrong_setting_is_logged_once_and_ignored(value: object, caplog: pytest.LogCaptureFixture) -> None:
    callback = CachelbCallback(seed=1)
    for _ in range(2):
        assert len(asyncio.run(callback.async_filter_deployments("m", [provider("a", cache_ttl_s=value)], user(), {})))
    assert callback.fallbacks.total() == 0
    (record,) = caplog.records
    text = (
        f"deployment a: model_info.cachelb.cache_ttl_s is {value!r}, it must be seconds above 0 or null; it is ignored"
    )
    assert record.getMessage() == text
    assert believed_for([provider("a", cache_ttl_s=value)], user()) == 300
