"""Which functions of which files a warm `select_worker` runs, by callgrind.

    python -m benches.call_tree
    python -m benches.call_tree --list

Needs valgrind. The extension is built once more, without servers and unoptimised, so that no function is inlined away,
into a folder of its own. The router has the default policy and four workers; the last of its requests is counted. A
generic function counts once, however many types it is compiled for, and a closure is part of the function it is in.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TARGET: Final = ROOT / "target" / "unoptimised"
METHOD: Final = "*NativeRouter>::__pymethod_select_worker__"
CALLS: Final = 12
PROBE: Final = f"""
from cachelb import Router
router = Router(["a", "b", "c", "d"], seed=1)
for turn in range({CALLS}):
    decision = router.select_worker(tokens=list(range(64 + 16 * (turn % 8))))
    decision.on_complete()
"""


def main() -> None:
    """Build, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every function")
    arguments = parser.parse_args()
    found = functions(run(build()))
    for file, names in sorted(found.items()):
        print(f"{len(names):4} {file}")
        if arguments.list:
            print("\n".join(f"       {name}" for name in sorted(names)))
    print(f"{sum(map(len, found.values()))} functions in {len(found)} files")


def build() -> Path:
    """Build the extension without optimisation and without servers; return a folder to import it from."""
    optimised = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["profile"]["dev"]["package"]
    plain = [f'--config=profile.dev.package."{crate}".opt-level=0' for crate in optimised]
    command = ["cargo", "build", "--quiet", "--locked", "--package=cachelb-py", "--lib", "--no-default-features"]
    subprocess.run([*command, f"--target-dir={TARGET}", *plain], check=True, cwd=ROOT)
    package = TARGET / "python" / "cachelb"
    shutil.rmtree(package.parent, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "cachelb", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(TARGET / "debug" / "lib_core.so", package / "_core.abi3.so")
    return package.parent


def run(python_path: Path) -> str:
    """Run the probe and return what callgrind writes of the method's last call."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "calls"
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--compress-strings=no"]
        only = ["--collect-atstart=no", f"--toggle-collect={METHOD}", f"--dump-after={METHOD}"]
        command = [*tool, *only, sys.executable, "-c", PROBE]
        environment = os.environ | {"PYTHONPATH": str(python_path), "PYTHONHASHSEED": "0"}
        subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
        return out.with_name(f"calls.{CALLS}").read_text("utf-8")


def functions(calls: str) -> dict[str, set[str]]:
    """Return the functions of this repository by file."""
    found: dict[str, set[str]] = defaultdict(set)
    file = ""
    for line in calls.splitlines():
        kind, _, value = line.partition("=")
        if kind in {"fl", "fi", "fe"}:
            file = value
        elif kind == "fn" and file.startswith(f"{ROOT}/rust/"):
            found[str(Path(file).relative_to(ROOT))].add(plain_name(value))
    return dict(found)


def plain_name(name: str) -> str:
    """Return the name of a function, or of that around a closure, without generic arguments."""
    name = re.sub(r"(::\{\{closure\}\})+.*$", "", re.sub(r"'\d+$", "", name))
    while (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter
    return name


if __name__ == "__main__":
    main()
