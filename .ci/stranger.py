"""Run the first hour of a stranger: a built wheel in a new environment, an empty home, 80 columns, no checkout.

usage: stranger.py FOLDER_OF_THE_WHEEL

Every line of `LINES` runs in a folder of its own, and prints what stands beside it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """What a stranger types, and reads."""

    about: str
    typed: str | tuple[str, ...]
    """A program in Python, or a command of the environment with its arguments."""
    prints: str
    """Regular expression of all of it, errors too."""
    development: bool = False
    """Python's development mode."""


def error(program: str) -> str:
    """Print the error that the last line of a program raises."""
    *before, last = program.strip().splitlines()
    return "\n".join([*before, "try:", f"    {last}", "except Exception as error:", "    print(error)"])


def exactly(text: str) -> str:
    """Expect a text."""
    return re.escape(text) + "\n"


ROUTER = 'from cachelb import Router\nrouter = Router(["gpu0", "gpu1"])\n'
LINES = [
    Line(
        "dir() lists the router and the policies",
        "import cachelb\n"
        "names = {'Router', 'Adaptive', 'CacheAware', 'LeastLoaded', 'Rendezvous', 'policies'}\n"
        "print(names - set(dir(cachelb)), cachelb.policies.CacheAware is cachelb.CacheAware)",
        exactly("set() True"),
    ),
    Line(
        "a policy's repr evaluates",
        "from cachelb import Adaptive, CacheAware, LeastLoaded, Rendezvous\n"
        "print(eval(repr(CacheAware(load_factor=1.5, seed=1))), Adaptive(), LeastLoaded(), Rendezvous())",
        exactly("CacheAware(load_factor=1.5, seed=1) Adaptive() LeastLoaded() Rendezvous()"),
    ),
    Line("a misspelled keyword", error(ROUTER + 'Router(["a"], polcy="random")'), r".*did you mean 'policy'\?\n"),
    Line(
        "an option of another policy",
        error(ROUTER + 'Router(["a"], load_factor=2.0)'),
        r".*an option of CacheAware.*policy=CacheAware\(load_factor=\.\.\.\)\n",
    ),
    Line("a prompt by position", error(ROUTER + 'router.select_worker("hi")'), r".*text=.*\n"),
    Line("a prompt by another name", error(ROUTER + 'router.select_worker(prompt="hi")'), r".*text=.*\n"),
    Line("no prompt", error(ROUTER + "router.select_worker()"), r".*no prompt: give text=.*by_load=True.*\n"),
    Line("by load", ROUTER + "print(router.select_worker(by_load=True).is_open)", exactly("True")),
    Line(
        "hashes of another size",
        error("from cachelb import hash_blocks\n" + ROUTER + "router.select_worker(blocks=hash_blocks(range(96), 32))"),
        r"blocks= are of blocks of 32 tokens, not 16.*\n",
    ),
    Line(
        "a dropped decision",
        ROUTER + 'router.select_worker(text="hi")\nprint("next")',
        r"(?s).*ResourceWarning: decision \S+ was dropped.*next\n",
        development=True,
    ),
    Line(
        "a decision that is open when the program ends",
        ROUTER + 'decision = router.select_worker(text="hi")',
        r"sys:1: ResourceWarning: decision \S+ was dropped.*\n",
        development=True,
    ),
    Line(
        "a policy alone",
        "from cachelb import CacheAware, Policy\n"
        "policy = CacheAware(seed=1)\n"
        "print(isinstance(policy, Policy))\n"
        "for prompt in ({'text': 'hi ' * 99}, {'messages': [{'role': 'user', 'content': 'hello ' * 99}]}):\n"
        "    first, again = (policy.select_worker(['gpu0', 'gpu1'], **prompt) for _ in range(2))\n"
        "    print(first.reason, again.reason, first.worker == again.worker)",
        exactly("True\ncold prefix True\ncold prefix True"),
    ),
]


def wrong(line: Line, programs: Path) -> str | None:
    """Run a line; say what was wrong."""
    program, *arguments = ("python", "-c", line.typed) if isinstance(line.typed, str) else line.typed
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
        environment = {"HOME": home, "COLUMNS": "80", "PATH": f"{programs}:{os.defpath}", "LANG": "C.UTF-8"}
        environment |= {"PYTHONDEVMODE": "1"} if line.development else {}
        run = subprocess.run(
            [programs / program, *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
    if run.returncode == 0 and re.fullmatch(line.prints, run.stdout):
        return None
    return f"{line.about}: exit {run.returncode}, expected {line.prints!r}, printed:\n{run.stdout}"


def main(folder: Path) -> int:
    """Run every line with the one wheel in `folder`."""
    (wheel,) = folder.glob("cachelb-*.whl")
    with tempfile.TemporaryDirectory() as environment:
        venv.create(environment, with_pip=True)
        programs = Path(environment, "bin")
        wanted = f"cachelb[cli] @ {wheel.resolve().as_uri()}"
        subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", wanted], check=True)
        problems = [problem for line in LINES if (problem := wrong(line, programs))]
    print("\n".join(problems) or f"stranger: {len(LINES)} lines of the first hour work from the wheel")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
