"""The Go sample over the C library, with the race detector: `make test-go`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "rust" / "capi" / "samples" / "go"
CACHE = ROOT / "target" / "go"


def test_go_sample_is_vetted_and_passes_with_the_race_detector(tmp_path: Path) -> None:
    build = ["cargo", "build", "--quiet", "--locked", "--package", "cachelb-c"]
    subprocess.run(build, cwd=ROOT, check=True)
    # Alone: beside the shared library, a linker would take that.
    shutil.copy(ROOT / "target" / "debug" / "libcachelb_c.a", tmp_path)
    environment = os.environ | {
        "CGO_LDFLAGS": f"-L{tmp_path}",
        "GOCACHE": str(CACHE / "cache"),
        "GOPATH": str(CACHE / "path"),
        "GOTOOLCHAIN": "local",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for command in (["go", "vet", "./..."], ["go", "test", "-count=1", "-race", "./..."]):
        ran = subprocess.run(command, cwd=SAMPLE, env=environment, capture_output=True, encoding="utf-8", check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
