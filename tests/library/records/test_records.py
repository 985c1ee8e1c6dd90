"""Record files: what is in them, how large they get, what happens when they cannot be written."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.models.decision_records import decision_record

from cachelb import Router
from cachelb.records import VERSION, JsonlRecords, RecordsStats, read_records
from cachelb.records.schema import decision_line
from cachelb.types import DecisionRecord, ShadowPick

NEVER_S = 3600.0  # the tests flush by hand


def record(number: int) -> DecisionRecord:
    shadows = (ShadowPick("random", "http://gpu1:8000", "random", 0, agrees=False),)
    return decision_record(id=f"d-{number}", time_s=1000.0 + number, cached_tokens=None, ttft_s=0.5, shadows=shadows)


class Feed:
    """A router's memory of finished requests: the last four of them."""

    def __init__(self) -> None:
        self.kept: list[DecisionRecord] = []
        self.broken = False
        self.asked = threading.Semaphore(0)

    def finish(self, n: int) -> None:
        self.kept += [record(len(self.kept) + i) for i in range(n)]

    def wait_for_two_looks(self) -> None:
        """Wait until a reader has fetched the records once from now on and has written them."""
        self.asked = threading.Semaphore(0)
        for _ in range(2):
            assert self.asked.acquire(timeout=120)

    @property
    def records(self) -> Self:
        return self

    def since(self, cursor: int, limit: int = 4096) -> tuple[list[DecisionRecord], int, int]:
        self.asked.release()
        if self.broken:
            raise RuntimeError("broken")
        oldest = max(0, len(self.kept) - 4)
        begin = max(cursor, oldest)
        found = self.kept[begin : begin + limit]
        return found, begin + len(found), max(0, oldest - cursor)


@pytest.fixture
def feed() -> Feed:
    return Feed()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.jsonl"


@pytest.fixture
def attached(feed: Feed, path: Path) -> Iterator[JsonlRecords]:
    records = JsonlRecords(path, interval_s=NEVER_S, max_bytes=4096)
    records.start(feed)
    yield records
    records.stop()


def recorded(feed: Feed, path: Path, finished: int, **options: Any) -> JsonlRecords:
    """Record what a feed has and then finishes, each flushed, and stop."""
    records = JsonlRecords(path, interval_s=NEVER_S, **options)
    records.start(feed)
    for _ in range(finished):
        feed.finish(1)
        records.flush()
    records.stop()
    return records


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_the_version_and_every_field_of_the_record(path: Path) -> None:
    with Router(["a", "b"], shadow=["random"], seed=1) as router:
        router.attach(JsonlRecords(path, interval_s=NEVER_S))
        router.select_worker(tokens=range(100)).on_complete(cached_tokens=3, output_tokens=7)
        (expected,) = router.records.recent()
    (row,) = rows(path)
    assert (row["v"], row["kind"]) == (VERSION, "decision")
    assert (row["id"], row["cached_tokens"], row["output_tokens"]) == (expected.id, 3, 7)
    assert row["shadows"][0]["policy"] == "random"
    (read,) = read_records(path).decisions()
    assert read.time_s == pytest.approx(expected.time_s, abs=1.0)
    assert read.shadows == expected.shadows


def test_what_is_read_is_what_was_written(feed: Feed, path: Path, attached: JsonlRecords) -> None:
    feed.finish(3)
    attached.flush()
    assert list(read_records(path).decisions()) == feed.kept


def test_stop_writes_the_rest_and_may_be_called_twice(feed: Feed, path: Path, attached: JsonlRecords) -> None:
    feed.finish(2)
    attached.stop()
    attached.stop()
    assert [row["id"] for row in rows(path)] == ["d-0", "d-1"]
    assert attached.stats() == RecordsStats(written=2)
    attached.flush()
    assert not [thread for thread in threading.enumerate() if thread.name == "cachelb-records"]


def test_records_that_were_there_before_the_start_are_written_and_older_ones_not_missed(feed: Feed, path: Path) -> None:
    feed.finish(10)
    records = recorded(feed, path, 0)
    assert [row["id"] for row in rows(path)] == ["d-6", "d-7", "d-8", "d-9"]
    assert records.stats() == RecordsStats(written=4)


def test_the_thread_writes_by_itself(feed: Feed, path: Path) -> None:
    records = JsonlRecords(path, interval_s=0.001)
    records.start(feed)
    feed.finish(1)
    feed.wait_for_two_looks()
    written = path.read_text()
    records.stop()
    assert json.loads(written)["id"] == "d-0"


def test_records_overwritten_meanwhile_are_counted_and_a_line_says_so(
    feed: Feed, path: Path, attached: JsonlRecords
) -> None:
    feed.finish(7)
    attached.flush()
    first, *others = rows(path)
    assert (first["v"], first["kind"], first["records"]) == (VERSION, "lost", 3)
    assert [row["id"] for row in others] == ["d-3", "d-4", "d-5", "d-6"]
    assert (attached.stats().written, attached.stats().lost) == (4, 3)
    files = read_records(path)
    assert len(list(files.decisions())) == 4
    assert files.lost == 3


def test_a_full_file_is_begun_anew_and_the_oldest_goes(feed: Feed, path: Path) -> None:
    records = recorded(feed, path, 50, max_bytes=4096, keep=2)
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["decisions.jsonl", "decisions.jsonl.1", "decisions.jsonl.2"]
    assert all(file.stat().st_size <= 4096 for file in path.parent.iterdir())
    kept = [row.id for row in read_records(path).decisions()]
    assert kept == [f"d-{i}" for i in range(50 - len(kept), 50)]
    per_file = 4096 // len(decision_line(record(10)))
    assert len(kept) > 2 * per_file
    assert records.stats().rotations == (50 - 1) // per_file


def test_without_older_files_the_file_is_emptied(feed: Feed, path: Path) -> None:
    recorded(feed, path, 20, max_bytes=4096, keep=0)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert rows(path)[-1]["id"] == "d-19"
    assert path.stat().st_size <= 4096


def test_a_file_that_ends_within_a_line_is_continued_on_the_next(feed: Feed, path: Path) -> None:
    path.write_text('{"v":1,"kind":"decis')
    recorded(feed, path, 1)
    files = read_records(path)
    assert [row.id for row in files.decisions()] == ["d-0"]
    assert [str(line) for line in files.bad_lines] == [f"{path}:1: not JSON"]


def test_each_process_has_a_file_of_its_own(feed: Feed, tmp_path: Path) -> None:
    recorded(feed, tmp_path / "d-{pid}.jsonl", 1)
    assert [file.name for file in tmp_path.iterdir()] == [f"d-{os.getpid()}.jsonl"]


def test_a_folder_that_is_missing_is_made(feed: Feed, tmp_path: Path) -> None:
    recorded(feed, tmp_path / "a" / "b.jsonl", 1)
    assert len(rows(tmp_path / "a" / "b.jsonl")) == 1


def test_a_file_that_cannot_be_written_is_logged_once_counted_and_tried_again(
    feed: Feed, path: Path, attached: JsonlRecords, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir()
    with caplog.at_level(logging.INFO, "cachelb.records"):
        for _ in range(3):
            feed.finish(1)
            attached.flush()
        stats = attached.stats()
        assert (stats.written, stats.failed, stats.errors) == (0, 3, 3)
        assert stats.last_error is not None
        assert stats.last_error.startswith("IsADirectoryError")
        path.rmdir()
        feed.finish(1)
        attached.flush()
    assert [message.levelname for message in caplog.records] == ["ERROR", "INFO"]
    first, second = rows(path)
    assert (first["kind"], first["records"], second["id"]) == ("lost", 3, "d-3")


def test_a_full_disk_loses_records_and_nothing_else(feed: Feed, tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):  # noqa: PTH110 - a device, and only Linux has it
        return
    path = tmp_path / "full.jsonl"
    path.symlink_to("/dev/full")
    records = recorded(feed, path, 2)
    assert (records.stats().failed, records.stats().written) == (2, 0)
    assert records.stats().last_error == "OSError: No space left on device"


def test_a_router_in_trouble_does_not_end_the_thread(feed: Feed, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = JsonlRecords(path, interval_s=0.001)
    records.start(feed)
    feed.broken = True
    feed.wait_for_two_looks()
    feed.broken = False
    feed.finish(1)
    records.stop()
    assert rows(path)[-1]["id"] == "d-0"
    assert records.stats().last_error == "RuntimeError"
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_one_object_records_one_router(feed: Feed, attached: JsonlRecords) -> None:
    with pytest.raises(RuntimeError, match="one JsonlRecords per router"):
        attached.start(feed)


# --- reading ---


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "not a JSON object"),
        ("{}", "version None, and this reader knows 1 of decision records"),
        ('{"v":2,"kind":"decision"}', "version 2, and this reader knows 1 of decision records"),
        ('{"v":1,"kind":"other"}', "unknown kind of line 'other', not 'decision' or 'lost'"),
        ('{"v":1,"kind":"decision"}', "field 'shadows' is missing or no list of objects"),
        ('{"v":1,"kind":"decision","shadows":[]}', "field 'id' is missing"),
        ('{"v":1,"kind":"lost","records":"x"}', "field 'records' is str, not int"),
        ('{"v":1,"kind":"lost","records":1e400}', "field 'records' is float, not int"),
    ],
    ids=lambda value: value[:20],
)
def test_lines_that_are_no_records_are_counted_and_named(path: Path, line: str, problem: str) -> None:
    path.write_text(decision_line(record(0)) + line + "\n" + decision_line(record(1)))
    files = read_records(path)
    assert [row.id for row in files.decisions()] == ["d-0", "d-1"]
    assert (files.lines, files.bad) == (3, 1)
    assert [str(bad) for bad in files.bad_lines] == [f"{path}:2: {problem}"]


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("prompt_tokens", -(2**70), "field 'prompt_tokens' is out of range: -1180591620717411303"),
        ("prompt_tokens", True, "field 'prompt_tokens' is bool, not int"),
        ("prompt_tokens", None, "field 'prompt_tokens' is NoneType, not int"),
        ("ttft_s", "soon", "field 'ttft_s' is str, not float | None"),
        ("shadows", [{"policy": "random"}], "field 'key' is missing"),
    ],
)
def test_a_field_of_another_type_makes_a_line_bad(path: Path, field: str, value: Any, problem: str) -> None:
    row = json.loads(decision_line(record(0)))
    path.write_text(json.dumps(row | {field: value}) + "\n")
    files = read_records(path)
    assert list(files.decisions()) == []
    assert [bad.problem for bad in files.bad_lines] == [problem]


def test_fields_of_a_later_release_are_passed_over(path: Path) -> None:
    row = json.loads(decision_line(record(0)))
    path.write_text(json.dumps(row | {"later": 1}) + "\n")
    assert list(read_records(path).decisions()) == [record(0)]


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"decisions\.jsonl"):
        read_records(path)


def test_only_the_first_bad_lines_are_kept(path: Path) -> None:
    path.write_text("x\n" * 1000)
    files = read_records(path)
    assert list(files.decisions()) == []
    assert (files.bad, len(files.bad_lines)) == (1000, 20)


FORKED = """
import os, sys
from cachelb import Router
from cachelb.records import JsonlRecords

router = Router(["a"])
records = JsonlRecords(sys.argv[1] + "/d-{pid}.jsonl", interval_s=3600.0)
router.attach(records)
router.select_worker(by_load=True).on_complete(output_tokens=1)
child = os.fork()
router.select_worker(by_load=True).on_complete(output_tokens=2 if child else 3)
router.close()
os.write(1, b"%d\\n" % records.stats().written)  # at once, as both write
if child:
    sys.exit(os.waitpid(child, 0)[1])
os._exit(0)
"""


def test_the_child_of_a_fork_writes_a_file_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert sorted(done.stdout.split()) == ["1", "2"]
    written = [[row["output_tokens"] for row in rows(path)] for path in tmp_path.iterdir()]
    assert sorted(written) == [[1, 2], [3]]
