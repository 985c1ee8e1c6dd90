"""Workers in a file follow it, and outlive what is wrong with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.waiting import wait_until

from cachelb import Router
from cachelb_gateway.discovery import FileWorkers


def targets(*hosts: str, **labels: str) -> list[dict[str, object]]:
    return [{"targets": list(hosts), "labels": labels}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "workers.json"
    made.write_text(json.dumps(targets("gpu0:8000", "gpu1:8000", "gpu2:8000")))
    return made


def attach(router: Router[str], path: Path) -> FileWorkers:
    source = FileWorkers(path, interval_s=0.01, drop_wait_s=0.3)
    router.attach(source)
    wait_until(lambda: len(router.keys()) == 3)
    return source


def names(router: Router[str]) -> set[str]:
    return {key.removeprefix("http://").removesuffix(":8000") for key in set(router.keys())}


def test_changes_are_followed_in_place_and_by_renaming(router: Router[str], path: Path) -> None:
    attach(router, path)
    assert names(router) == {"gpu0", "gpu1", "gpu2"}
    path.write_text(json.dumps(targets("gpu0:8000", "gpu1:8000", "gpu2:8000", "gpu3:8000")))
    wait_until(lambda: names(router) == {"gpu0", "gpu1", "gpu2", "gpu3"})
    other, before = path.with_suffix(".new"), path.stat()
    other.write_text(json.dumps(targets("gpu0:8000", "gpu1:8000", "gpu2:8000", "gpu9:8000")))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))  # same time, same size
    other.replace(path)
    wait_until(lambda: names(router) == {"gpu0", "gpu1", "gpu2", "gpu9"})


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "half": (lambda path: path.write_text(path.read_text()[:-9]), "not JSON"),
    "empty": (lambda path: path.write_text(""), "not JSON"),
    "deep": (lambda path: path.write_text("[" * 100_000), "not JSON"),
    "binary": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not JSON"),
    "missing": (lambda path: path.unlink(), "FileNotFoundError"),
    "huge": (lambda path: path.write_bytes(b" " * (9 << 20)), "larger than 8388608 bytes"),
    "no list": (lambda path: path.write_text("{}"), "not a list of 4096 groups at most"),
    "no group": (lambda path: path.write_text('["gpu0:8000"]'), 'a group is {"targets": [...], "labels": {...}}'),
    "no targets": (lambda path: path.write_text('[{"labels": {}}]'), "targets must be a list of host:port"),
    "path": (lambda path: path.write_text('[{"targets": ["gpu0:80/v1"]}]'), "a target is host:port, got 'gpu0:80/v1'"),
    "password": (
        lambda path: path.write_text('[{"targets": ["http://user:p@ss/word@gpu0:80/v1?token=hidden"]}]'),
        "a target is host:port, got '***@gpu0:80/v1'",
    ),
    "user": (
        lambda path: path.write_text('[{"targets": ["hidden@gpu0:80"]}]'),
        "neither a host name nor an address: '***@gpu0'",
    ),
    "password of a scheme": (
        lambda path: path.write_text('[{"targets": ["a"], "labels": {"__scheme__": "http://user:hidden@gpu0"}}]'),
        "a scheme is http or https, got '***@gpu0'",
    ),
    "port": (lambda path: path.write_text('[{"targets": ["gpu0:0"]}]'), "a port is from 1 to 65535, got 0"),
    "address": (
        lambda path: path.write_text('[{"targets": ["999.1.1.1:80"]}]'),
        "neither a host name nor an address: '999.1.1.1'",
    ),
    "scheme": (
        lambda path: path.write_text('[{"targets": ["a"], "labels": {"__scheme__": "file"}}]'),
        "a scheme is http or https, got 'file'",
    ),
    "too many": (
        lambda path: path.write_text(json.dumps(targets(*(f"w{n}" for n in range(5000))))),
        "workers must have 4096 items at most, got more",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_file_keeps_the_workers(router: Router[str], path: Path, broken: str) -> None:
    source = attach(router, path)
    write, reason = BROKEN[broken]
    write(path)
    wait_until(lambda: source.stats().failing == reason)
    assert len(router.keys()) == 3
    path.write_text(json.dumps(targets("gpu0:8000", "gpu1:8000")))
    wait_until(lambda: source.stats().failing == "")
    assert names(router) == {"gpu0", "gpu1"}


def test_an_empty_list_empties_the_fleet_once_confirmed(router: Router[str], path: Path) -> None:
    source = attach(router, path)
    path.write_text("[]")
    wait_until(lambda: source.stats().waiting == 3)
    assert len(router.keys()) == 3
    wait_until(lambda: not router.keys())


def test_yaml_and_labels_are_read(router: Router[str], tmp_path: Path) -> None:
    path = tmp_path / "workers.yml"
    groups = [*targets("gpu0:8000", "GPU0:8000", "[fd00::1]:80"), *targets("gpu1", "10.0.0.1:1", __scheme__="https")]
    path.write_text(yaml.safe_dump(groups))
    router.attach(FileWorkers(path))
    expected = {"http://gpu0:8000", "http://[fd00::1]:80", "https://gpu1", "https://10.0.0.1:1"}
    wait_until(lambda: set(router.keys()) == expected)


def test_nested_yaml_does_not_fill_memory(tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    bomb = ["a: &a [x, x]"] + [
        f"{b}: &{b} [{', '.join(['*' + a] * 9)}]" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
    ]
    path.write_text("\n".join(bomb))
    with Router[str]() as router:
        source = FileWorkers(path)
        router.attach(source)
        wait_until(lambda: source.stats().failing == "not a list of 4096 groups at most")


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="path must name a file, got ''"):
        FileWorkers("")
    with pytest.raises(ValueError, match="scheme must be http or https, got 'x'"):
        FileWorkers(tmp_path / "a", scheme="x")
    with pytest.raises(TypeError, match="path must be text or a path of text, got bytes"):
        FileWorkers(b"a")  # type: ignore[arg-type]
