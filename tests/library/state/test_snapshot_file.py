"""Snapshots on real disks: warm starts, cold starts with their reason, crashes, and disks that fail."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.library.router.test_router_fork import in_child
from tests.library.state.transports import SECRET, STORY, matched
from tests.models.kv_streams import nothing_left
from tests.programs import running
from tests.waiting import wait_until

from cachelb import Router
from cachelb.errors import SnapshotError
from cachelb.state import SnapshotFile

WORKERS = ["gpu0", "gpu1"]


def make_router(**options: Any) -> Router[str]:
    return Router(WORKERS, **{"secret": SECRET, "seed": 1, **options})


def live(path: Path, tokens: list[int] = STORY, **options: Any) -> SnapshotFile:
    """One life of a router that routes a prompt."""
    file = SnapshotFile(path, **options)
    with make_router() as router:
        router.attach(file)
        router.select_worker(tokens=tokens).on_complete()
    return file


def start(path: Path, secret: str = SECRET, block_size: int = 16, **options: Any) -> str:
    """How a router starts with the file, which is left as it is."""
    file = SnapshotFile(path, **options)
    with make_router(secret=secret, block_size=block_size) as router:
        before = path.read_bytes() if path.is_file() else None
        router.attach(file)
        found = file.stats().start
        assert (matched(router) == 992) == found.startswith("warm")
    if before is not None:
        path.write_bytes(before)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "router.snapshot"


def test_router_starts_warm_before_attach_returns(path: Path) -> None:
    first = live(path)
    assert first.stats().start == "cold: there is no snapshot yet"
    assert (first.stats().written, first.stats().bytes, first.stats().failures) == (1, path.stat().st_size, 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert start(path).startswith("warm: 62 blocks on 2 workers, kept ")
    file = SnapshotFile(path)
    with make_router() as router:
        router.attach(file)
        restored = file.stats().restored
        assert restored is not None
        assert (restored.blocks, restored.unknown_workers) == (62, 0)
        assert 0.0 <= restored.age_s < 600.0
    # Restored blocks are kept for the next start.
    assert start(path).startswith("warm: 62 blocks")


def test_file_is_written_at_every_interval_and_at_the_end(path: Path) -> None:
    file = SnapshotFile(path, interval_s=0.02)
    with make_router() as router:
        router.attach(file)
        router.select_worker(tokens=STORY).on_complete()
        written = file.stats().written
        wait_until(lambda: file.stats().written >= written + 3)
        assert start(path).startswith("warm: 62 blocks")
        router.select_worker(tokens=[5, *STORY]).on_complete()
    assert start(path).startswith("warm: 124 blocks")
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert not [thread for thread in threading.enumerate() if thread.name == "cachelb-snapshots"]
    file.stop()


def test_restore_can_be_left_out(path: Path) -> None:
    live(path)
    assert start(path, restore=False) == "cold: it was asked for"


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.unlink(), "cold: there is no snapshot yet"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "cold: snapshot refused: its checksum does not match"),
        (lambda path: path.write_bytes(b""), "cold: snapshot refused: it is too short"),
        (lambda path: path.write_bytes(os.urandom(4096)), "cold: snapshot refused: it does not start like one"),
        (become_a_folder, "cold: .*/router.snapshot is no regular file"),
        (become_a_pipe, "cold: .*/router.snapshot is no regular file"),
    ],
    ids=["missing", "cut", "empty", "noise", "folder", "pipe"],
)
def test_spoilt_file_starts_cold_with_a_reason_and_one_line(
    path: Path, spoil: Callable[[Path], object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    live(path)
    spoil(path)
    caplog.clear()
    assert re.match(reason, start(path))
    lines = [record.getMessage() for record in caplog.records if "starts cold" in record.getMessage()]
    assert len(lines) == 1
    assert str(path) in lines[0]


@pytest.mark.parametrize("become", [become_a_folder, become_a_pipe])
def test_what_is_no_file_is_left_alone(path: Path, become: Callable[[Path], None]) -> None:
    live(path)
    become(path)
    before = path.lstat().st_ino
    with Router(WORKERS, secret=SECRET) as router:
        file = SnapshotFile(path)
        router.attach(file)
    assert file.stats().error == f"{path} is no regular file"
    assert (file.stats().written, file.stats().failures) == (0, 1)
    assert path.lstat().st_ino == before
    assert list(path.parent.iterdir()) == [path]


def test_link_is_replaced_by_the_file(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"of somebody else")
    path.symlink_to(other)
    live(path)
    assert not path.is_symlink()
    assert other.read_bytes() == b"of somebody else"
    assert start(path).startswith("warm")


def test_old_file_starts_cold(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(path)
    later = time.time() + 20.0
    monkeypatch.setattr(time, "time", lambda: later)
    assert "s old, more than 10" in start(path, max_age_s=10.0)
    assert start(path, max_age_s=600.0).startswith("warm")


def test_router_without_a_secret_is_refused_at_once(path: Path) -> None:
    for seed, hash_seed in ((None, None), (None, 7), (7, None)):
        with (
            Router(WORKERS, seed=seed, hash_seed=hash_seed) as router,
            pytest.raises(SnapshotError, match="build it with secret="),
        ):
            router.attach(SnapshotFile(path))
    assert not path.exists()


def test_failing_disk_is_counted_and_logged_once_and_routing_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "there later"
    path = folder / "router.snapshot"
    file = SnapshotFile(path, interval_s=0.01)

    def lines() -> int:
        return caplog.text.count("no snapshot could be written")

    with make_router() as router:
        router.attach(file)
        wait_until(lambda: file.stats().failures >= 3)
        assert lines() == 1
        assert "No such file or directory" in file.stats().error
        assert router.select_worker(tokens=STORY).worker in WORKERS
        folder.mkdir()
        wait_until(lambda: file.stats().written >= 2)
        assert file.stats().error == ""
        while not path.is_dir():  # it may be written anew in between
            with contextlib.suppress(FileExistsError):
                path.unlink()
                path.mkdir()
        failures = file.stats().failures
        wait_until(lambda: file.stats().failures >= failures + 3)
        assert lines() == 2
    assert [entry.name for entry in folder.iterdir()] == [path.name], "nothing half-written is left"


def test_process_that_is_killed_while_writing_leaves_a_whole_file(path: Path) -> None:
    script = f"""
from tests.library.state.test_snapshot_file import make_router, SnapshotFile
router = make_router()
for at in range(300):
    router.select_worker(tokens=[at, *range(1000)]).on_complete()
router.select_worker(tokens=range(1000)).on_complete()
router.attach(SnapshotFile({str(path)!r}, interval_s=1e-6))
print("ready", flush=True)
while True:
    router.select_worker(tokens=range(1000)).on_complete()
"""
    for delay in (0.0, 0.01, 0.02, 0.05):
        with running("-c", script) as (_, output):
            assert output.readline() == "ready\n"
            wait_until(path.exists)
            time.sleep(delay)
        assert start(path).startswith("warm: 18")
    for left in path.parent.iterdir():
        os.utime(left, (1.0, 1.0))
    live(path)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "what the crash left is removed"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_child_of_a_fork_leaves_the_file_to_its_parent(path: Path) -> None:
    file = SnapshotFile(path, interval_s=3600.0)
    with make_router() as router:
        router.attach(file)
        router.select_worker(tokens=STORY).on_complete()

        def child() -> None:
            router.select_worker(tokens=[5, *STORY]).on_complete()
            router.close()
            assert not path.exists()
            own = SnapshotFile(path.with_name("child.snapshot"))
            router.attach(own)
            router.close()
            assert own.stats().written == 1

        in_child(child)
        assert not path.exists()
    assert file.stats().written == 1
    assert start(path).startswith("warm: 62 blocks")


def test_one_file_keeps_one_router_and_may_keep_another_later(path: Path) -> None:
    file = SnapshotFile(path)
    with make_router() as router:
        router.attach(file)
        with make_router() as other, pytest.raises(RuntimeError, match="runs already"):
            other.attach(file)
        router.select_worker(tokens=STORY).on_complete()
        router.detach(file)
        with make_router() as other:
            other.attach(file)
            assert matched(other) == 992


def test_path_is_that_of_the_start(path: Path) -> None:
    folder = Path.cwd()
    try:
        os.chdir(path.parent)
        file = SnapshotFile(path.name)
        os.chdir("/")
        with make_router() as router:
            router.attach(file)
    finally:
        os.chdir(folder)
    assert path.exists()


def test_wrong_arguments_are_named(path: Path) -> None:
    cases: list[tuple[object, dict[str, Any], str]] = [
        ("", {}, "path must name a file"),
        (f"{path.parent}/", {}, "path must name a file"),
        ("a\0b", {}, "path must name a file"),
        (b"x", {}, "path must be text"),
        (path, {"interval_s": 0}, "interval_s must be above 0"),
        (path, {"interval_s": "1"}, "interval_s must be a number"),
        (path, {"max_age_s": -1}, "max_age_s must be above 0"),
        (path, {"ttl_s": float("inf")}, "ttl_s must be a finite number, got inf"),
        (path, {"restore": 1}, "restore must be True or False"),
    ]
    for wrong, options, message in cases:
        with pytest.raises((TypeError, ValueError), match=message):
            SnapshotFile(wrong, **options)  # type: ignore[arg-type]


def test_no_thread_and_no_file_is_left(path: Path) -> None:
    live(path)
    with nothing_left():
        for _ in range(5):
            live(path, interval_s=0.001)
