"""Sources come and go with a router, whatever they raise and however it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.library.index.test_threads import run
from tests.library.router.router_parts import Replaced
from tests.library.state.addresses import wait_until
from tests.library.state.transports import SECRET

from cachelb import Router
from cachelb.state import SnapshotFile, ZmqMesh


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("cachelb-s")}


@pytest.fixture(autouse=True, name="before")
def no_thread_is_left() -> Iterator[set[threading.Thread]]:
    """Yield the threads that are not those of the test."""
    before = threads()
    yield before
    assert threads() <= before


class Source:
    """Counts its calls, and raises if a test sets an error."""

    def __init__(self, *, starts: Exception | None = None, stops: Exception | None = None) -> None:
        self.starts, self.stops = starts, stops
        self.done: list[str] = []

    def start(self, _router: Router[Any], /) -> None:
        self.done.append("start")
        if self.starts is not None:
            raise self.starts

    def stop(self) -> None:
        self.done.append("stop")
        if self.stops is not None:
            raise self.stops


def mesh(**options: Any) -> ZmqMesh:
    return ZmqMesh("tcp://127.0.0.1:*", [], **options)


def test_all_sources_are_stopped_though_one_cannot_be() -> None:
    first, last = Source(), Source()
    router = Router(["gpu0"], secret=SECRET)
    for source in (first, Source(stops=OSError("no")), last):
        router.attach(source)
    with pytest.raises(OSError, match="no"):
        router.close()
    assert first.done == last.done == ["start", "stop"]
    router.close()
    assert first.done == ["start", "stop"]


def test_source_that_cannot_start_is_not_attached() -> None:
    source = Source(starts=OSError("no"))
    with Router(["gpu0"]) as router, pytest.raises(OSError, match="no"):
        router.attach(source)
    assert source.done == ["start"]


def test_what_is_no_source_or_not_attached_is_named() -> None:
    router = Router(["gpu0"])
    with pytest.raises(TypeError, match=r"a source must have start\(router\) and stop\(\), .* not dict"):
        router.attach({})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="this Source is not attached to this router"):
        router.detach(Source())


@pytest.mark.usefixtures("frequent_switches")
def test_router_that_several_threads_close_is_closed() -> None:
    for _ in range(500):
        router, sources = Router(["gpu0"]), [Source() for _ in range(3)]
        for source in sources:
            router.attach(source)
        run(lambda _, router=router: router.close(), threads=3)  # type: ignore[misc]
        assert all(source.done == ["start", "stop"] for source in sources)


def test_router_that_is_closed_while_it_waits_for_a_warm_start_shares_nothing() -> None:
    router, sharing = Router(["gpu0"], secret=SECRET), mesh(warm_start_s=1e300)
    attaching = threading.Thread(target=router.attach, args=(sharing,))
    attaching.start()
    wait_until(lambda: router.stats().state is not None, 60.0)
    router.close()
    attaching.join(60.0)
    assert not attaching.is_alive()
    assert router.stats().state is None


def test_router_that_is_closed_as_its_sharing_begins_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(["gpu0"], secret=SECRET)
    state = router._fleet

    def closing(*args: Any, **options: Any) -> Any:
        router.close()
        return state.share(*args, **options)

    monkeypatch.setattr(Router, "_fleet", Replaced(state, {"share": closing}))
    router.attach(mesh())
    assert router.stats().state is None


def test_interrupted_warm_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(["gpu0"], secret=SECRET)

    wait = threading.Event.wait

    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout == 60.0:
            raise KeyboardInterrupt
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        router.attach(mesh(warm_start_s=60.0))
    assert router.stats().state is None
    router.attach(mesh())
    router.close()


def test_second_sharing_is_refused_and_the_first_goes_on() -> None:
    with Router(["gpu0"], secret=SECRET) as router:
        first = mesh()
        router.attach(first)
        with pytest.raises(RuntimeError, match="this router shares its state already"):
            router.attach(mesh())
        state = router.stats().state
        assert state is not None
        assert state.origin == first.stats().origin
        router.detach(first)
        router.attach(mesh())
        assert router.stats().state is not None


@pytest.mark.parametrize("kind", ["mesh", "file"])
def test_finalizer_may_close_the_router_in_the_middle_of_its_own_thread(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: set[threading.Thread]
) -> None:
    router = Router(["gpu0"], secret=SECRET)
    closed: list[str] = []
    state, call = router._fleet, "publish" if kind == "mesh" else "keep"
    original: Callable[..., Any] = getattr(state, call)

    def closing(*arguments: Any) -> Any:
        if threading.current_thread().name.startswith("cachelb-s") and not closed:
            closed.append(threading.current_thread().name)
            router.close()
        return original(*arguments)

    monkeypatch.setattr(Router, "_fleet", Replaced(state, {call: closing}))
    router.attach(mesh() if kind == "mesh" else SnapshotFile(tmp_path / "kept", interval_s=0.01))
    wait_until(lambda: bool(closed) and threads() <= before, 60.0)
    assert router.stats().state is None


@pytest.mark.parametrize("options", [{}, {"seed": 7}, {"hash_seed": 7}], ids=str)
def test_router_without_a_secret_shares_nothing(options: dict[str, Any]) -> None:
    with Router(["gpu0"], **options) as router:
        with pytest.raises(ValueError, match=r"needs a secret .*secret=.*CACHELB_SECRET"):
            router.attach(mesh())
        assert router.stats().state is None
