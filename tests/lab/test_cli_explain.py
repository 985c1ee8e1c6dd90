"""`cachelb explain`: the ranking of losses, rotated and damaged files, filters, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.commands import app
from tests.models.decision_records import decision_record

from cachelb.records.schema import decision_line, marker_line
from cachelb.types import ShadowPick


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.jsonl"


def run(*arguments: object, given: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)], input=given)


def write(path: Path, *changes: dict[str, Any], times: int = 1) -> None:
    with path.open("a") as file:
        for change in changes * times:
            file.write(decision_line(decision_record(**change)))


NOTHING = {"best_matched_tokens": 0, "matched_tokens": 0, "cached_tokens": 0}


def held(tokens: int, **fields: Any) -> dict[str, Any]:
    """Fields of a decision whose counts of matched tokens are all equal."""
    return dict.fromkeys(NOTHING, tokens) | fields


def explained(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def ranked(document: Any) -> list[tuple[str, str, int, int]]:
    return [(loss["step"], loss["cause"], loss["tokens"], loss["requests"]) for loss in document["losses"]]


def test_every_lost_token_is_ranked_under_its_step_and_cause(path: Path) -> None:
    write(path, held(0, reason="cold"), times=3)
    write(path, {"matched_tokens": 200, "cached_tokens": 200, "reason": "spill"}, times=2)
    write(path, held(100, attempt=1), held(300, reason="only-one"), held(950, cached_tokens=990))
    write(path, {"cached_tokens": 500, "key": "gpu1"})
    document = explained(path)
    assert ranked(document) == [
        ("prompt -> best", "nowhere", 3050, 4),
        ("best -> selected", "spill", 1600, 2),
        ("prompt -> best", "retry", 900, 1),
        ("prompt -> best", "only-one", 700, 1),
        ("selected -> engine", "gpu1", 500, 1),
    ]
    sums = [document[name] for name in ("requests", "prompt_tokens", "best_matched_tokens")]
    assert sums == [9, 9000, 9000 - 3050 - 900 - 700]
    assert document["selected_matched_tokens"] == document["best_matched_tokens"] - 1600
    assert document["engine_cached_tokens"] == document["selected_matched_tokens"] - 500 + 40
    assert document["workers"]["gpu1"]["missing_tokens"] == 500
    assert document["workers"]["gpu0"]["surplus_tokens"] == 40
    assert all(loss["advice"] for loss in document["losses"])


def test_tables_name_the_causes(path: Path) -> None:
    write(path, {"matched_tokens": 0, "cached_tokens": 0, "reason": "imbalance"})
    write(path, {"shadows": (ShadowPick("random", "gpu1", "random", 10, agrees=False),)})
    output = run(path).stdout
    for text in (
        "Token funnel of 2 requests",
        "best -> selected",
        "imbalance",
        "raise the policy's balance thresholds",
    ):
        assert text in output
    assert output.index("Router and engines") < output.index("Shadow policies")


def test_what_events_could_not_tell_is_a_cause_of_its_own(path: Path) -> None:
    write(path, held(0, reason="text-only"), times=2)
    write(path, held(0, reason="stale-events"))
    assert ranked(explained(path)) == [
        ("prompt -> best", "text-only", 2000, 2),
        ("prompt -> best", "stale-events", 1000, 1),
    ]
    assert "pass tokens" in run(path).stdout


def test_requests_that_say_nothing_of_caches_are_left_out_and_counted(path: Path) -> None:
    write(path, {}, {"cached_tokens": None}, {"prompt_tokens": 0})
    write(path, {"outcome": "failed", "cached_tokens": None}, times=2)
    write(path, {"part": "decode", "matched_tokens": 0}, {"part": "decode", "reason": "local-decode"})
    document = explained(path)
    assert document["requests"] == 2
    left_out = {"ended as failed": 2, "decode half of a pair": 1, "length unknown": 1, "no cached tokens reported": 1}
    assert document["left_out"] == left_out


def test_without_reports_the_last_step_is_left_open(path: Path) -> None:
    write(path, {"cached_tokens": None, "matched_tokens": 0, "reason": "hash"})
    document = explained(path)
    assert (document["reported"], document["requests"]) == (False, 1)
    assert ranked(document) == [("best -> selected", "hash", 1000, 1)]
    assert "pass cached_tokens= to on_complete()" in run(path).stdout


def test_a_prompt_given_as_text_is_counted_in_the_engines_tokens(path: Path) -> None:
    write(path, {"engine_prompt_tokens": 500, "matched_tokens": 800, "cached_tokens": 300})
    document = explained(path)
    assert document["prompt_tokens"] == 500
    assert ranked(document) == [("best -> selected", "prefix", 100, 1), ("selected -> engine", "gpu0", 100, 1)]


def test_older_files_are_read_too_and_each_once(path: Path) -> None:
    write(path.with_name("decisions.jsonl.2"), {})
    write(path.with_name("decisions.jsonl.1"), {}, times=2)
    write(path, {}, times=3)
    write(path.with_name("decisions.jsonl.old"), {})
    assert explained(path)["requests"] == 6
    assert explained(path, path.with_name("decisions.jsonl.1"))["requests"] == 6
    assert explained(path.with_name("decisions.jsonl.1"))["requests"] == 2
    path.unlink()
    assert explained(path)["requests"] == 3


def test_bad_lines_are_counted_and_the_first_is_named(path: Path) -> None:
    write(path, {})
    with path.open("a") as file:
        file.write('{"v":1\n[]\n' + marker_line("lost", time_s=0.0, records=7))
    result = run(path)
    assert result.exit_code == 0
    assert result.stderr == f"2 of 4 lines are no records, first {path}:2: not JSON\n"
    assert "7 more requests were not recorded" in result.stdout
    document = explained(path)
    assert (document["lines"], document["bad_lines"], document["missing_records"]) == (4, 2, 7)
    assert document["problems"] == [f"{path}:2: not JSON", f"{path}:3: not a JSON object"]


def test_workers_can_be_picked_out_and_one_that_is_not_there_is_answered_with_the_nearest(path: Path) -> None:
    write(path, {}, {"key": "gpu1", "cached_tokens": 0}, {"key": "gpu2"})
    document = explained(path, "--worker", "gpu1", "--worker", "gpu2")
    assert document["requests"] == 2
    assert document["left_out"] == {"other workers": 1}
    assert list(document["workers"]) == ["gpu1", "gpu2"]
    result = run(path, "--worker", "gpu9")
    assert result.exit_code == 2
    assert "no decision for 'gpu9'; did you mean 'gpu" in result.stderr


def test_top_limits_the_causes(path: Path) -> None:
    for reason in ("spill", "imbalance", "hash"):
        write(path, {"reason": reason, "matched_tokens": 0, "cached_tokens": 0})
    assert len(explained(path, "--top", 2)["losses"]) == 2


def test_a_missing_file_and_a_file_without_records_are_told_apart(path: Path) -> None:
    result = run(path)
    assert result.exit_code == 2
    assert "attach cachelb.records.JsonlRecords" in result.stderr
    path.write_text("nothing\n")
    result = run(path)
    assert result.exit_code == 1
    assert f"no decision records in 1 lines, first {path}:1: not JSON" in result.stderr


def test_what_a_worker_holds_and_cannot_resume_is_a_cause_of_its_own(path: Path) -> None:
    write(path, held(100, held_tokens=700), held(400, held_tokens=400, shared_tokens=150, pulled_tokens=50))
    document = explained(path)
    assert ranked(document) == [
        ("prompt -> best", "nowhere", 300 + 600, 2),
        ("prompt -> best", "cannot-resume", 600, 1),
    ]
    steps = [document[f"selected_{step}_tokens"] for step in ("held", "shared", "pulled")]
    assert steps == [1100, 150, 50]
    output = run(path).stdout
    rows = ["held there for full attention", "in the shared cache", "copied from peers"]
    assert sorted(rows, key=output.index) == rows
    write(path, {"matched_tokens": 1000}, times=3)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[2:]))
    assert "full attention" not in run(path).stdout
