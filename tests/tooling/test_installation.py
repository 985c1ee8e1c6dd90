"""Installation by pages, messages and builds, and the packages that `make` installs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cachelb.common.extras import _PACKAGES

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FOLDERS = {"gateway": "cachelb-gateway", "lab": "cachelb-lab", "fakes": "cachelb-fakes"}
PROJECTS = {".": PROJECT} | {
    f"./{name}": tomllib.loads((ROOT / name / "pyproject.toml").read_text("utf-8")) for name in FOLDERS
}
EXTRAS = {word: set(each["project"].get("optional-dependencies", {})) for word, each in PROJECTS.items()}
SHORTCUTS = {"cli", "dns", "extproc", "gateway", "lab", "plots", "serve", "testing", "traces", "yaml"}
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PACKAGE_README = ROOT / PROJECT["project"]["readme"]
READMES = (PACKAGE_README, *(ROOT / name / "README.md" for name in FOLDERS))
PAGES = (ROOT / "README.md", *READMES, *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py"))
COMMAND = re.compile(r"pip install ([^`#\n]+)")


def installed(text: str) -> list[str]:
    """Return what the `pip install` commands of a text name."""
    return [word for found in COMMAND.finditer(text) for word in shlex.split(found[1])]


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_page_installs_from_a_checkout_or_a_wheel(page: Path) -> None:
    words = installed(page.read_text("utf-8"))
    assert not [word for word in words if word.startswith("cachelb")], "cachelb is in no index"
    own = {word: re.fullmatch(r"(target/wheels/\*\.whl|\.(?:/\w+)?)(?:\[(.+)\])?", word) for word in words}
    for found in filter(None, own.values()):
        extras = set((found[2] or "").split(",")) - {""}
        assert extras <= EXTRAS.get(found[1], set()) - (SHORTCUTS if found[1] == "." else set()), found[0]
    assert not words or any(own.values()), f"{words} does not install cachelb"


def test_pages_that_need_extras_install_them() -> None:
    words = [word for page in PAGES for word in installed(page.read_text("utf-8"))]
    named = {extra for word in words for extra in re.split(r"[\[\],]", word)[1:]}
    assert set.union(*EXTRAS.values()) - SHORTCUTS - named <= {"otel", "redis"}


def test_messages_name_extras_that_there_are() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "python" / "cachelb").rglob("*.py"))
    named = set(re.findall(r"install (?:it|them), or (cachelb[-\w]*\[\w+\])", sources))
    named |= {extra for _, extra in _PACKAGES.values()}
    there = {f"{each['project']['name']}[{extra}]" for word, each in PROJECTS.items() for extra in EXTRAS[word]}
    assert len(named) > 5
    assert named <= there


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.parent.name)
def test_the_readme_of_a_package_links_to_nothing_that_an_index_lacks(page: Path) -> None:
    links = re.findall(r"\]\(([^)]*)\)", page.read_text("utf-8"))
    assert [link for link in links if not link.startswith("https://")] == []


def test_distributions_have_one_version_and_pin_it() -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["version"]
    names = {"cachelb", *FOLDERS.values()}
    for word, each in PROJECTS.items():
        project = each["project"]
        extras = project.get("optional-dependencies", {}).values()
        found = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
        assert {str(own.specifier) for own in found if own.name in names} == {f"=={version}"}
        assert word == "." or project["version"] == version
        assert word == "." or set(project) - {"dependencies"} >= {"license-files", "readme", "classifiers"}


def test_the_library_needs_numpy_alone() -> None:
    assert [Requirement(text).name for text in PROJECT["project"]["dependencies"]] == ["numpy"]


def test_shortcuts_lead_to_the_distributions_alone() -> None:
    project = PROJECT["project"]["optional-dependencies"]
    found = {
        name for name, texts in project.items() if any(Requirement(text).name in FOLDERS.values() for text in texts)
    }
    assert found == SHORTCUTS


@pytest.mark.parametrize("folder", FOLDERS)
def test_distributions_carry_licence_and_notice(folder: str) -> None:
    for name in ("LICENSE", "NOTICE"):
        assert (ROOT / folder / name).read_bytes() == (ROOT / name).read_bytes()


def pins(lock: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)(?:\[.*\])?==(\S+)", lock.read_text("utf-8"), re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def group(name: str) -> list[Requirement]:
    found: list[Requirement] = []
    for entry in PROJECT["dependency-groups"][name]:
        found += [Requirement(entry)] if isinstance(entry, str) else group(entry["include-group"])
    return found


@pytest.mark.parametrize("name", ["dev", "envoy", "production-stack", "wheels"])
def test_locks_have_what_the_groups_ask_for(name: str) -> None:
    pinned = pins(ROOT / "requirements" / f"{name}.lock")
    for requirement in group(name):
        versions = pinned.get(requirement.name.lower().replace("_", "-"), set())
        assert versions, f"{requirement.name} is not in requirements/{name}.lock: run `make lock`"
        assert all(requirement.specifier.contains(version) for version in versions), f"{requirement}: run `make lock`"


@pytest.mark.parametrize("lock", [pytest.param(lock, id=lock.stem) for lock in LOCKS])
def test_every_pin_has_hashes_and_names_no_index(lock: Path) -> None:
    text = lock.read_text("utf-8")
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == sum(map(len, pins(lock).values()))
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text


def test_what_demo_and_tests_install_agrees() -> None:
    dev, demo = (pins(ROOT / "requirements" / f"{name}.lock") for name in ("dev", "run"))
    assert {name: dev[name] for name in demo} == demo


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Begin a build as pip does, with `folder` as the only one that programs are found in."""
    env = {**os.environ, "PATH": str(folder), **environment}
    command = [sys.executable, "-c", "import build_backend"]
    return subprocess.run(command, env=env, cwd=ROOT / "rust", capture_output=True, text=True, check=False)


def test_a_build_without_rust_ends_at_once_and_says_how_to_get_it(tmp_path: Path) -> None:
    run = build(tmp_path)
    needed = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["rust-version"]
    assert run.returncode == 1
    assert f"needs Rust {needed} or newer, and `cargo` does not run here" in run.stderr
    assert "https://rustup.rs" in run.stderr
    assert "Traceback" not in run.stderr
    assert build(tmp_path, CACHELB_FETCH_RUST="1").returncode == 0


def test_a_build_with_an_old_rust_names_its_version(tmp_path: Path) -> None:
    for version, status, said in (("1.63.0 (old)", 1, "and this is cargo 1.63.0 (old)."), ("99.0.0", 0, "")):
        for program in ("cargo", "rustc"):
            (tmp_path / program).write_text(f"#!/bin/sh\necho '{program} {version}'\n")
            (tmp_path / program).chmod(0o755)
        run = build(tmp_path)
        assert run.returncode == status
        assert said in run.stderr
