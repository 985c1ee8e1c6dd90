"""maturin's build backend, behind a check: without a recent Rust, an error that explains how to get one.

maturin by itself would download a whole toolchain; `CACHELB_FETCH_RUST=1` lets it.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

from maturin import *  # noqa: F403 - the hooks of PEP 517

HELP = """
Building cachelb needs Rust {needed} or newer, and {found}.

  install it:  https://rustup.rs, or the packages rustc and cargo of this system if they are new enough
  fetch it:    CACHELB_FETCH_RUST=1 lets this build download one for itself

A wheel of cachelb needs no Rust.
"""


def check_rust() -> None:
    """Raise SystemExit unless cargo and rustc run and are new enough."""
    manifest = Path(__file__).resolve().parents[1] / "Cargo.toml"
    needed = tomllib.loads(manifest.read_text("utf-8"))["workspace"]["package"]["rust-version"]
    for program in ("cargo", "rustc"):
        try:
            told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            raise SystemExit(HELP.format(needed=needed, found=f"`{program}` does not run here")) from None
        version = re.search(r"(\d+)\.(\d+)", told)
        if version and tuple(map(int, version.groups())) < tuple(map(int, needed.split("."))):
            raise SystemExit(HELP.format(needed=needed, found=f"this is {told}"))


if os.environ.get("CACHELB_FETCH_RUST") != "1":
    check_rust()
