"""A router behind real sockets recovers from loss, restarts and absence, and counts them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from tests.models.metrics_server import eventually

import cachelb
from cachelb.events import ZmqSource
from cachelb.testing import EventPublisher
from cachelb.testing.events import cleared, removed, stored

PROMPT = list(range(100))
W = "http://gpu0:8000"


def store(publisher: EventPublisher, first: int, last: int) -> None:
    """Publish the blocks `first` to `last` of the prompt, named by their positions."""
    publisher.publish(
        stored(range(first, last + 1), PROMPT[16 * first : 16 * (last + 1)], parent=first - 1 if first else None)
    )
    publisher.flush()


def believed(router: cachelb.Router[str]) -> int:
    return router.select_worker(tokens=PROMPT, dry_run=True).matched_tokens


def state(router: cachelb.Router[str]) -> str | None:
    events = router.stats().workers[0].kv_events
    return None if events is None else events.state


@contextlib.contextmanager
def following(publisher: EventPublisher) -> Iterator[cachelb.Router[str]]:
    with cachelb.Router([W], policy="kv-aware", seed=1) as router:
        router.attach(ZmqSource(endpoints={W: publisher.endpoint}))
        publisher.wait_for(lambda: publisher.subscribers == 1)
        eventually(lambda: state(router) == "live")
        yield router
        router.validate()


def test_history_and_live_messages_are_believed() -> None:
    with EventPublisher() as publisher:
        store(publisher, 0, 2)
        with following(publisher) as router:
            eventually(lambda: believed(router) == 48)
            store(publisher, 3, 3)
            eventually(lambda: believed(router) == 64)
            publisher.publish(removed([1]))
            eventually(lambda: believed(router) == 16)
            publisher.publish(cleared())
            eventually(lambda: believed(router) == 0)


def test_a_lost_removal_is_replayed() -> None:
    with EventPublisher() as publisher, following(publisher) as router:
        store(publisher, 0, 2)
        eventually(lambda: believed(router) == 48)
        publisher.drop()
        publisher.publish(removed([1]))
        store(publisher, 3, 3)
        eventually(lambda: believed(router) == 16)
        eventually(lambda: state(router) == "live")
        assert router.stats().kv_gaps == 1
        assert router.stats().kv_resyncs == 0


@pytest.mark.parametrize("blocks", [1, 4], ids=["fewer messages than before", "more messages than before"])
def test_a_restarted_engine_is_believed_anew(blocks: int) -> None:
    with EventPublisher() as publisher, following(publisher) as router:
        store(publisher, 0, 2)
        store(publisher, 3, 4)
        eventually(lambda: believed(router) == 80)
        publisher.restart()
        for block in range(blocks):
            store(publisher, block, block)
        eventually(lambda: believed(router) == 16 * blocks)
        eventually(lambda: state(router) == "live")
        assert router.stats().kv_restarts == 1


def test_a_worker_that_comes_back_is_followed_from_the_start() -> None:
    with EventPublisher() as publisher, following(publisher) as router:
        store(publisher, 0, 2)
        eventually(lambda: believed(router) == 48)
        router.remove_worker(W)
        router.add_worker(W)
        store(publisher, 3, 3)
        eventually(lambda: believed(router) == 64)
        eventually(lambda: state(router) == "live")
