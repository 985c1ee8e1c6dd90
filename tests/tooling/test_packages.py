"""Releases: crates that fit together and carry their licences, and a script that refuses what is not ready."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


WORKSPACE = _read(ROOT / "Cargo.toml")["workspace"]
VERSION = WORKSPACE["package"]["version"]
MANIFESTS = {path.parent: _read(path) for path in sorted(ROOT.glob("rust/*/Cargo.toml"))}
PUBLISHED = {folder: found for folder, found in MANIFESTS.items() if found["package"]["publish"] is True}


def test_published_crates_depend_on_their_own_version_of_each_other_alone() -> None:
    names = {found["package"]["name"] for found in PUBLISHED.values()}
    given = {name: WORKSPACE["dependencies"][name] for name in names}
    assert {name: found.get("version") for name, found in given.items()} == dict.fromkeys(names, f"={VERSION}")
    for found in PUBLISHED.values():
        own = {name for name in found["dependencies"] if name.startswith("cachelb")}
        assert own <= names, found["package"]["name"]


def test_only_the_facade_promises_an_interface() -> None:
    described = {found["package"]["name"]: found["package"]["description"] for found in PUBLISHED.values()}
    internal = {name for name, text in described.items() if text.startswith("Internal part of cachelb")}
    assert described.keys() - internal == {"cachelb"}
    facade = MANIFESTS[ROOT / "rust" / "cachelb"]
    assert facade["features"]["default"] == ["learned", "peers", "published", "sharing"]
    assert facade["features"].keys() == {"default", "learned", "peers", "published", "sharing"}


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_crate_carries_licence_and_notice(folder: Path) -> None:
    for name in ("LICENSE", "NOTICE"):
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes()
    package = PUBLISHED[folder]["package"]
    inherited = {name: WORKSPACE["package"][name] for name, value in package.items() if value == {"workspace": True}}
    whole = package | inherited
    assert 1 <= len(whole["keywords"]) <= 5
    assert {"license", "rust-version", "categories", "readme", "authors"} <= whole.keys()


def test_packages_of_the_crates_hold_what_they_need(tmp_path: Path) -> None:
    unpublished = [found["package"]["name"] for folder, found in MANIFESTS.items() if folder not in PUBLISHED]
    command = ["cargo", "package", "--workspace", "--no-verify", "--offline", "--allow-dirty", "--quiet"]
    command += [word for name in unpublished for word in ("--exclude", name)]
    subprocess.run([*command, "--target-dir", tmp_path], cwd=ROOT, check=True, capture_output=True)
    for found in PUBLISHED.values():
        name = f"{found['package']['name']}-{VERSION}"
        with tarfile.open(tmp_path / "package" / f"{name}.crate") as archive:
            held = set(archive.getnames())
        assert {f"{name}/{part}" for part in ("LICENSE", "NOTICE", "README.md", "Cargo.toml", "src/lib.rs")} <= held


@pytest.mark.parametrize(
    ("changelog", "left", "refusal"),
    [
        ("## [Unreleased]\n", False, "CHANGELOG.md has no section '## [1.2.3] - DATE'"),
        ("## [1.2.3] - 2026-01-02\n", True, "the checkout has changes that are not committed"),
        ("## [1.2.3] - 2026-01-02\n", False, "the tag v1.2.3 is there already"),
    ],
    ids=["no-date", "dirty", "tagged"],
)
def test_release_script_refuses_a_commit_that_is_not_ready(
    changelog: str, left: bool, refusal: str, tmp_path: Path
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release", tmp_path / ".ci")
    (tmp_path / "Cargo.toml").write_text('[workspace.package]\nversion = "1.2.3"\n', "utf-8")
    (tmp_path / "CHANGELOG.md").write_text(changelog, "utf-8")
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "one"), ("tag", "v1.2.3")):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    if left:
        (tmp_path / "left").touch()
    ran = subprocess.run([tmp_path / ".ci" / "release"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, f"release: {refusal}\n")
