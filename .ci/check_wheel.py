"""Check the built wheels and sdists: contents, and the README example in an environment with nothing else.

The wheel of the library is built from the sdist, so what the sdist lacks for building shows there. The checkout is then
installed as the pages tell readers to.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

WHEEL_HOLDS = ("cachelb/__init__.py", "cachelb/_core.pyi", "cachelb/_core.abi3.so", "cachelb/py.typed")
PURE = ("gateway", "lab", "fakes")
PURE_HOLDS = ("__init__.py", "py.typed")
LICENCES = ("LICENSE", "NOTICE", "rust/THIRD-PARTY-LICENSES.txt")
# Those of the extension: the C library is no part of it.
MANIFESTS = sorted(set(Path("rust").glob("*/Cargo.toml")) - {Path("rust/capi/Cargo.toml")})
SDIST_HOLDS = (
    *LICENCES,
    *("Cargo.lock", "Cargo.toml", "pyproject.toml", "python/README.md", "rust/build_backend.py"),
    *(manifest.as_posix() for manifest in MANIFESTS),
)
SBOM = re.compile(r"cachelb-[^/]+\.dist-info/sboms/cachelb-py\.cyclonedx\.json")
# Before the example, which uses numpy.
IMPORT_ALONE = """
import sys

known = set(sys.modules)
import cachelb

others = {name.partition(".")[0] for name in set(sys.modules) - known} - set(sys.stdlib_module_names) - {"cachelb"}
assert not others, f"`import cachelb` imports {sorted(others)}"
"""


def missing_from_wheel(wheel: Path) -> list[str]:
    """List what the wheel must hold and does not."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in WHEEL_HOLDS if name not in names]
    held = {name.partition(".dist-info/licenses/")[2] for name in names}
    missing += [name for name in LICENCES if name not in held]
    return missing + missing_from_sbom(wheel)


def missing_from_sbom(wheel: Path) -> list[str]:
    """List the direct dependencies of all crates that the wheel's list of parts does not have."""
    archive = zipfile.ZipFile(wheel)
    found = [name for name in archive.namelist() if SBOM.fullmatch(name)]
    if not found:
        return ["its list of parts, sboms/cachelb-py.cyclonedx.json"]
    parts = {part["name"] for part in json.loads(archive.read(found[0]))["components"]}
    needed = set()
    for manifest in MANIFESTS:
        needed |= set(tomllib.loads(manifest.read_text("utf-8"))["dependencies"])
    return [f"{name} in its list of parts" for name in sorted(needed - parts)]


def missing_from_sdist(sdist: Path) -> list[str]:
    """List what the source distribution must hold and does not."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    return [name for name in SDIST_HOLDS if name not in names]


def missing_from_pure(folder: Path, name: str) -> list[str]:
    """List what the wheel and the sdist of another distribution must hold and do not."""
    (wheel,) = folder.glob(f"cachelb_{name}-*.whl")
    (sdist,) = folder.glob(f"cachelb_{name}-*.tar.gz")
    sources = {path.relative_to(name).as_posix() for path in Path(name, f"cachelb_{name}").rglob("*.py")}
    sources |= {f"cachelb_{name}/{file}" for file in PURE_HOLDS}
    held = {each.partition(".dist-info/licenses/")[2] or each for each in zipfile.ZipFile(wheel).namelist()}
    with tarfile.open(sdist) as archive:
        packed = {each.partition("/")[2] for each in archive.getnames()}
    needed = {"LICENSE", "NOTICE", *sources}
    problems = [f"{wheel.name} lacks {each}" for each in sorted(needed - held)]
    return problems + [f"{sdist.name} lacks {each}" for each in sorted({*needed, "README.md"} - packed)]


def readme_example() -> str:
    """Return the first Python block of the README."""
    block = re.search(r"^```python\n(.*?)^```", Path("README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    if block is None:
        message = "README.md has no ```python block"
        raise ValueError(message)
    return block[1]


def run_in_clean_environment(installed: list[str], *command: str) -> None:
    """Install this alone into a new environment and run a command of that there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder, "bin")
        subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", *installed], check=True)
        program, *arguments = command
        subprocess.run([programs / program, *arguments], check=True, cwd=folder, stdout=subprocess.DEVNULL)


def main(folder: Path) -> int:
    """Check the wheels and sdists in `folder`, one of each distribution."""
    (wheel,) = folder.glob("cachelb-*.whl")
    (sdist,) = folder.glob("cachelb-*.tar.gz")
    size = wheel.stat().st_size
    problems = [f"{wheel.name} lacks {name}" for name in missing_from_wheel(wheel)]
    problems += [f"{sdist.name} lacks {name}" for name in missing_from_sdist(sdist)]
    versions = {file.name.split("-")[1].removesuffix(".tar.gz") for file in folder.glob("cachelb*")}
    problems += [f"the versions differ: {sorted(versions)}"] if len(versions) > 1 else []
    problems += [problem for name in PURE for problem in missing_from_pure(folder, name)]
    if not problems:
        run_in_clean_environment([str(wheel.resolve())], "python", "-I", "-c", IMPORT_ALONE + readme_example())
        run_in_clean_environment([".", "./lab"], "cachelb", "demo", "--requests", "30")
    print(
        "\n".join(problems) or f"wheel: {size / 1024:.0f} KiB, complete, runs the README example when installed alone"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
