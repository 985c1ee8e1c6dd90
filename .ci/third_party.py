"""Write rust/THIRD-PARTY-LICENSES.txt, the licences of the crates in the wheel and in the C library.

With `--check`, fail unless the file is the one that would be written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ROOT / "rust" / "THIRD-PARTY-LICENSES.txt"
HEAD = """\
The extension module `cachelb._core` and the C library `cachelb-c` contain the crates below, or some of them, each under
the licence named. Where there are alternatives, all texts that the crate carries are here. `python .ci/third_party.py`
writes this file.
"""


def linked() -> list[dict[str, Any]]:
    """List the crates that are part of the extension or the C library on some platform, by name."""
    metadata = ["cargo", "metadata", "--format-version", "1", "--locked"]
    packages = json.loads(_run(metadata))["packages"]
    # Metadata has features that tests alone ask for.
    edges = ["--edges", "normal,no-proc-macro", "--target", "all", "--prefix", "none", "--no-dedupe"]
    tree = ["cargo", "tree", "--workspace", "--locked", *edges, "--format", "{p}"]
    lines = _run(tree).splitlines()
    seen = {tuple(line.split()[:2]) for line in lines if line}
    found = (each for each in packages if (each["name"], f"v{each['version']}") in seen and each["source"] is not None)
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout.decode()


def files_of(package: dict[str, Any]) -> list[Path]:
    """List the licences that a crate's source carries."""
    folder = Path(package["manifest_path"]).parent
    names = ("LICEN[CS]E*", "COPYING*", "UNLICENSE*", "NOTICE*")
    return sorted({file for name in names for file in folder.glob(name) if file.is_file()})


def texts(package: dict[str, Any], others: list[dict[str, Any]]) -> list[str]:
    """Read the licences of a crate.

    One that carries none is used under Apache-2.0, if it may be; else the text is that of a crate of its repository.
    """
    files = files_of(package)
    if not files and "Apache-2.0" in package["license"].replace("/", " OR ").split(" OR "):
        files = [ROOT / "LICENSE"]
    alike = (each for each in others if all(each[key] == package[key] for key in ("repository", "license")))
    files = files or next(filter(None, map(files_of, alike)), [])
    if not files:
        message = f"{package['name']} {package['version']}, {package['license']}, has no licence text"
        raise FileNotFoundError(message)
    return ["\n".join(line.rstrip() for line in file.read_text("utf-8").strip().splitlines()) for file in files]


def document() -> str:
    """Write every text once, below the crates that it is of."""
    of: defaultdict[str, list[str]] = defaultdict(list)
    packages = linked()
    for package in packages:
        for text in texts(package, packages):
            of[text].append(f"{package['name']} {package['version']}: {package['license']}")
    parts = ["\n".join(crates) + f"\n\n{text}\n" for text, crates in of.items()]
    return f"\n{'=' * 80}\n\n".join([HEAD, *parts])


def main() -> int:
    """Write the file, or compare it."""
    text = document()
    if "--check" not in sys.argv[1:]:
        WRITTEN.write_text(text, encoding="utf-8")
    elif WRITTEN.read_text("utf-8") != text:
        print(f"{WRITTEN.relative_to(ROOT)} is not that of Cargo.lock: run python .ci/third_party.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
