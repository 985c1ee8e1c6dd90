"""Make known mistakes, one at a time, and report those that tests do not find.

    python .ci/mutants.py [PACKAGE ...]

`tests/mutants.toml` lists them by package: of Python with the files of tests that must find them, of Rust with the
crates whose tests must. Files are changed in a copy, into which the built extension is taken along. Cargo tells a
build of the copy from one of the checkout by times alone, so that the copy has its own target folder.
The tests must pass on the unchanged copy first, or nothing that they find would mean anything.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("python", "gateway", "lab", "fakes")
TIMEOUT_S: Final = 900  # of the unchanged tests
LEAST_S: Final = 60
TIMES_AS_LONG: Final = 5  # as the unchanged tests; a mistake that takes longer hangs
PASSED, FAILED = 0, 1  # of pytest


def copy_to(folder: Path) -> None:
    """Copy what git tracks, and the built extension."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    built = (str(path.relative_to(ROOT)) for path in (ROOT / "python" / "cachelb").glob("_core.*"))
    for name in {*filter(None, listed.split("\0")), *built}:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)  # newer than what the last run built of a mistake


def run_tests(folder: Path, tests: list[str], crates: list[str], timeout_s: float = TIMEOUT_S) -> int:
    """Return the exit status of the tests; one that hangs has found the mistake."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(folder / name) for name in SOURCES),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CARGO_TARGET_DIR": str(ROOT / "target" / "mutants"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    if crates:
        command = ["cargo", "test", "--quiet", "--locked", *(word for crate in crates for word in ("--package", crate))]
        built = subprocess.run([*command, "--no-run"], cwd=folder, env=environment, check=False, capture_output=True)
        if built.returncode:
            return built.returncode
    try:
        status = subprocess.run(
            command, cwd=folder, env=environment, check=False, capture_output=True, timeout=timeout_s
        ).returncode
    except subprocess.TimeoutExpired:
        return FAILED
    return FAILED if crates and status else status


def survivors(
    folder: Path, name: str, mutants: list[list[str]], tests: list[str] | None = None, crates: list[str] | None = None
) -> list[str]:
    """Return a line for each mistake of a package that is not found, or could not be made."""
    tests, crates = tests or [], crates or []
    begun = time.monotonic()
    if run_tests(folder, tests, crates) != PASSED:
        return [f"{name}: its tests fail without a mistake"]
    timeout_s = max(LEAST_S, TIMES_AS_LONG * (time.monotonic() - begun))
    found = []
    for file, old, new in mutants:
        path = folder / file
        source = path.read_text("utf-8")
        if source.count(old) != 1:
            found.append(f"{name}: {file} has {old!r} {source.count(old)} times, not once")
            continue
        path.write_text(source.replace(old, new), "utf-8")
        status = run_tests(folder, tests, crates, timeout_s)
        path.write_text(source, "utf-8")
        print(f"{name}: {file}: {new!r}: {'found' if status == FAILED else f'NOT FOUND, status {status}'}", flush=True)
        if status != FAILED:
            found.append(f"{name}: {file}: {old!r} -> {new!r} is not found (status {status})")
    return found


def main() -> int:
    """Print the survivors."""
    packages = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="*", choices=[[], *packages], help="all by default")
    given = parser.parse_args().package or list(packages)
    with tempfile.TemporaryDirectory() as folder:
        copy_to(Path(folder))
        problems = [line for name in given for line in survivors(Path(folder), name, **packages[name])]
    print("\n".join(problems) or f"all mistakes of {len(given)} packages are found")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
