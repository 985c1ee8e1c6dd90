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
    install_into(VENV, *(packages or ("--requirement", str(_REQUIREMENTS))))


def install_into(venv: Path, *what: str, python: str = sys.executable) -> None:
    """Install packages into an environment, made by an interpreter where it is missing."""
    if not venv.exists():
        subprocess.run([python, "-m", "venv", venv], check=True)
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    subprocess.run(command, check=True)
