"""Resident memory per block, in a process that does nothing else."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benches.structures.indexes import OWN, Index
from benches.structures.prompts import BLOCK, WORKERS, Prompt, prompts
from benches.structures.rows import Row

_LENGTH = 2_048
_PROMPTS = 4_000
_NOTE = "512,000 different blocks of prompts of 2,048 tokens, one holder each"


def measure(_calls: int, makers: Sequence[type[Index]] = OWN) -> Iterator[Row]:
    """Fill every index in a process of its own."""
    if not Path("/proc/self/statm").exists():
        return
    for make in makers:
        code = f"from {make.__module__} import {make.__name__} as make; from {__name__} import fill; fill(make)"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"{make.name} could not be measured: {run.stderr.strip().splitlines()[-1]}")
        grown = float(run.stdout.split()[-1])
        yield Row("memory", make.name, grown, None, unit="bytes/block", note=_NOTE)


def fill(make: type[Index]) -> None:
    """Fill one index and print its memory per block. Runs in a process of its own."""
    index = make()
    given = prompts(_PROMPTS, _LENGTH, seed=4, share=0.0)
    # The first call allocates memory of no block, and memory freed before counts as the blocks' once reused.
    index.record(Prompt([1] * _LENGTH), 0)
    for prompt in given:
        _ = prompt.array, prompt.text
    gc.collect()
    before = _resident()
    for i, prompt in enumerate(given):
        index.record(prompt, i % WORKERS)
    gc.collect()
    blocks = _PROMPTS * _LENGTH // BLOCK
    sys.stdout.write(f"{(_resident() - before) / blocks}\n")


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096
