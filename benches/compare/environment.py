"""An environment of the alternatives, beside that of cachelb."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parents[2] / ".venv-compare"
PYTHON = VENV / "bin" / "python"
_REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def pinned(package: str) -> str:
    """Return an alternative with the version that is compared: `NAME==VERSION`."""
    lines = _REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def install(*packages: str) -> None:
    """Make the environment where it is missing, and install packages, all alternatives by default."""
    if not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    what = packages or ("--requirement", str(_REQUIREMENTS))
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    subprocess.run(command, check=True)
