"""The secret of a fleet: how it is given, and that it shows nowhere."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cachelb import Router
from cachelb.common.secret import VARIABLE, Secret, read
from cachelb.errors import SnapshotError
from cachelb.index import hash_blocks
from cachelb_gateway.config import load

TEXT, OTHER = "known to all gateways", "known to others only"
PROMPT = list(range(64))


def hashes_of(router: Router[str]) -> bool:
    """Whether a router hashes by the secret `TEXT`."""
    router.select_worker(tokens=PROMPT, cache_salt="s").on_complete()
    return router.select_worker(blocks=hash_blocks(PROMPT, namespace="s", secret=TEXT).tolist()).matched_tokens == 48


def test_argument_environment_and_configuration_give_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hashes_of(Router(["gpu0"], secret=OTHER))
    assert hashes_of(Router(["gpu0"], secret=TEXT))
    assert hashes_of(Router(["gpu0"], secret=[TEXT, OTHER], seed=3))
    assert hashes_of(load({"router": {"secret": TEXT}, "workers": ["gpu0"]}).build())
    for value in (TEXT, f'["{TEXT}", "{OTHER}"]'):
        environ = {VARIABLE: value, "CACHELB_WORKERS": "gpu0"}
        assert hashes_of(load({}, environ=environ).build()), "where it is given"
        monkeypatch.setenv(VARIABLE, value)
        assert hashes_of(Router(["gpu0"]))
        assert not hashes_of(Router(["gpu0"], secret=OTHER)), "an argument wins"


def test_a_number_in_the_environment_is_a_text() -> None:
    assert load({}, environ={VARIABLE: "1234567890123456"}).options == {"secret": "1234567890123456"}


def test_routers_without_a_secret_agree_within_a_process_and_have_none() -> None:
    router = Router(["gpu0"], hash_seed=7)
    assert not hashes_of(router)
    with pytest.raises(SnapshotError, match="secret="):
        router.shared_state.snapshot()


def test_a_hash_seed_that_is_given_wins() -> None:
    one, two = (Router(["gpu0"], secret=TEXT, hash_seed=seed) for seed in (7, None))
    one.select_worker(tokens=PROMPT).on_complete()
    assert one.select_worker(blocks=hash_blocks(PROMPT, seed=7)).matched_tokens == 48
    with pytest.raises(SnapshotError, match="another secret or hash_seed"):
        two.shared_state.restore(one.shared_state.snapshot())


def test_snapshots_of_another_secret_are_refused_though_the_hash_seed_is_the_same() -> None:
    one, two = (Router(["gpu0"], secret=secret, hash_seed=7) for secret in (TEXT, OTHER))
    one.select_worker(tokens=PROMPT).on_complete()
    with pytest.raises(SnapshotError, match="another block_size"):
        two.shared_state.restore(one.shared_state.snapshot())
    assert two.select_worker(tokens=PROMPT).matched_tokens == 0


@pytest.mark.parametrize(
    ("secret", "error", "text"),
    [
        ("short", ValueError, "16 characters or more, this one has 5: python -c"),
        ("", ValueError, "this one has 0"),
        ([TEXT, "short"], ValueError, "this one has 5"),
        ([], ValueError, "a list of 1 to 8, not of 0"),
        ([TEXT] * 9, ValueError, "a list of 1 to 8, not of 9"),
        (7, TypeError, "text, or a list of texts such as .*, not int"),
        (b"known to all gateways", TypeError, "not bytes"),
        ([TEXT, 7], TypeError, "a secret must be text, not int"),
        ({TEXT}, TypeError, "not set"),
    ],
    ids=str,
)
def test_secrets_that_are_none_are_refused(secret: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        Router(["gpu0"], secret=secret)
    assert TEXT not in str(caught.value)


def test_the_secret_shows_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    loaded = load({"router": {"secret": TEXT}, "workers": ["gpu0"]})
    with loaded.build() as router, Router(["gpu0"], secret=[TEXT, OTHER]) as other:
        shown: list[object] = [loaded, read(TEXT), Secret(TEXT)]
        for each in (router, other):
            decision = each.select_worker(tokens=PROMPT)
            shown += [each, decision, decision.headers, decision.explain(), each.explain(tokens=PROMPT), each.stats()]
            decision.on_complete()
            shown += [each.records.recent(), each.shared_state.snapshot()]
    text = f"{shown!r} {shown!s} {caplog.text}"
    for part in (TEXT, OTHER, "known to"):
        assert part not in text
    with pytest.raises(ValueError, match="secret") as caught:
        load({"router": {"secret": "too short!"}})
    assert "too short!" not in str(caught.value)


def test_keys_of_purposes_have_nothing_in_common() -> None:
    secret = Secret(TEXT)
    keys = {
        secret.key("mesh"),
        secret.key("frames of cachelb"),
        secret.key("frames of other"),
        Secret(OTHER).key("mesh"),
    }
    assert len({key[:8] for key in keys}) == 4
    assert secret.namespace_key == Secret(TEXT).namespace_key != Secret(OTHER).namespace_key
    assert secret.hash_seed == Secret(TEXT).hash_seed != Secret(OTHER).hash_seed
