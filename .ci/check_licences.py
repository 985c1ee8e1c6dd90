"""Fail when a crate linked into the wheel has a licence outside the permissive list, which is that of deny.toml."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

RULES = tomllib.loads(Path(__file__).parent.with_name("deny.toml").read_text("utf-8"))
PERMISSIVE = frozenset(RULES["licenses"]["allow"])


def is_permissive(expression: str) -> bool:
    """Say whether one alternative of an SPDX expression needs permissive licences only."""
    flat = expression.replace("/", " OR ")
    while "(" in flat:  # resolve the innermost group first, to a licence that stands for its answer
        flat = re.sub(r"\(([^()]*)\)", lambda group: "MIT" if is_permissive(group[1]) else "denied", flat)
    return any(
        all(licence.strip() in PERMISSIVE for licence in alternative.split(" AND "))
        for alternative in flat.split(" OR ")
    )


def main() -> int:
    """Check every package of the lock file, development dependencies included."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["packages"]
    denied = [p for p in packages if not is_permissive(p["license"] or "none")]
    for package in denied:
        print(f"{package['name']} {package['version']}: licence {package['license']!r} is not on the permissive list")
    print(f"licences: {len(packages) - len(denied)} of {len(packages)} packages are permissive")
    return 1 if denied else 0


if __name__ == "__main__":
    sys.exit(main())
