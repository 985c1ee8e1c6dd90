"""Run the first hour of a stranger: built wheels in a new environment, an empty home, 80 columns, no checkout.

usage: stranger.py FOLDER_OF_THE_WHEELS

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
    """Words that a stranger types, and reads."""

    about: str
    typed: str
    """A program in Python."""
    prints: str
    """Regular expression of all of it, errors too."""
    development: bool = False
    """Python's development mode."""
    with_all: bool = False
    """With the wheels of all distributions, not of the library alone."""


def error(program: str) -> str:
    """Print the error that the last line of a program raises."""
    *before, last = program.strip().splitlines()
    return "\n".join([*before, "try:", f"    {last}", "except Exception as error:", "    print(error)"])


def exactly(text: str) -> str:
    """Expect a text."""
    return re.escape(text) + "\n"


COMMAND = """
import os, re, subprocess
from pathlib import Path

def run(*words):
    # As on a terminal.
    environment = os.environ | {"FORCE_COLOR": "1"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = subprocess.run(["cachelb", *words], text=True, env=environment, **output)
    return re.sub(r"\\x1b[^a-zA-Z]*[a-zA-Z]", "", ran.stdout)
"""
TOOLS = f"""{COMMAND}
import json, time, urllib.request
from cachelb_fakes import FakeFleet

def post(url, **body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {{"content-type": "application/json"}})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)
"""
GATEWAY = """
with FakeFleet(2) as fleet, open("log", "w") as log:
    Path("gateway.toml").write_text(f"workers = {json.dumps(list(fleet.urls))}")
    command = ["cachelb", "serve", "--config", "gateway.toml", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as gateway:
        client, admin = (gateway.stdout.readline().split()[-1] for _ in range(2))
        user = [{"role": "user", "content": "hello " * 99}]
        print(post(f"{client}/v1/chat/completions", model="m", messages=user, max_tokens=2)["choices"][0]["index"])
        polls, end = 0, time.monotonic() + 30
        while not polls and time.monotonic() < end:
            with urllib.request.urlopen(f"{admin}/metrics") as page:
                polls = sum(map(float, re.findall(r"(?m)^cachelb_polls_total.* (\\S+)$", page.read().decode())))
        shown = run("watch", admin, "--once")
        print("polls", polls > 0, "width", max(map(len, shown.splitlines())) <= 80)
        print(all(url.partition("//")[2] in shown for url in fleet.urls) or shown)
        gateway.terminate()
lines = Path("log").read_text().splitlines()
print(all(re.match(r"\\d{4}-\\d\\d-\\d\\d[T ]\\d\\d:\\d\\d:\\d\\d\\S* +[A-Z]+ ", line) for line in lines) or lines)
"""
AGENT = """
with FakeFleet(1) as fleet:
    url, user = fleet.urls[0], [{"role": "user", "content": "hello"}]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    answer = post(f"{url}/v1/chat/completions", model="m", messages=user, tools=[tool], max_tokens=9)
    message = answer["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done"}
    chat = [*user, message, result]
    answer = post(f"{url}/v1/chat/completions", model="m", messages=chat, tools=[tool], max_tokens=9)
    print(message["tool_calls"][0]["function"]["name"], answer["choices"][0]["finish_reason"] != "tool_calls")
    print(len(post(f"{url}/v1/embeddings", model="m", input=["hello", "you"])["data"]))
"""
ROUTER = 'from cachelb import Router\nrouter = Router(["gpu0", "gpu1"])\n'
LINES = [
    Line(
        "dir() lists the router and the policies",
        "import cachelb\n"
        "names = {'Router', 'Adaptive', 'CacheAware', 'LeastLoaded', 'Rendezvous', 'index', 'policies'}\n"
        "print(names - set(dir(cachelb)), cachelb.policies.CacheAware is cachelb.CacheAware)",
        exactly("set() True"),
    ),
    Line(
        "an old name warns",
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as found:\n"
        "    warnings.simplefilter('always')\n"
        "    import cachelb; cachelb.BlockTracker\n"
        "print(found[0].message)",
        r"cachelb\.BlockTracker has moved to cachelb\.index; .*\n",
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
        r".*an option of CacheAware.*policy=CacheAware\(load_factor=\.\.\.\)\)\n",
    ),
    Line("a prompt by position", error(ROUTER + 'router.select_worker("hi")'), r".*text=.*\n"),
    Line("a prompt by another name", error(ROUTER + 'router.select_worker(prompt="hi")'), r".*text=.*\n"),
    Line("no prompt", error(ROUTER + "router.select_worker()"), r".*no prompt: give text=.*by_load=True.*\n"),
    Line("by load", ROUTER + "print(router.select_worker(by_load=True).is_open)", exactly("True")),
    Line(
        "hashes of another size",
        error(
            "from cachelb.index import hash_blocks\n"
            + ROUTER
            + "router.select_worker(blocks=hash_blocks(range(96), 32))"
        ),
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
    Line(
        "the library needs numpy alone",
        "from importlib.metadata import distributions\n"
        "print(sorted({each.name for each in distributions()} - {'pip', 'setuptools'}))",
        exactly("['cachelb', 'numpy']"),
    ),
    Line(
        "the list of commands at 80 columns, with the lines that install them",
        COMMAND
        + "shown = run('--help')\nprint(max(map(len, shown.splitlines())) <= 80, shown.count('(pip install cachelb-'))",
        exactly("True 2"),
    ),
    Line(
        "a command of a distribution that is not installed",
        COMMAND + "print(run('serve', '--worker', 'http://gpu0:8000'), end='')",
        exactly("cachelb: the command serve is in cachelb-gateway: pip install cachelb-gateway"),
    ),
    Line(
        "an old import path of a distribution that is not installed",
        error("import cachelb.sim"),
        exactly("cachelb.sim has moved to cachelb_lab.sim: pip install cachelb-lab"),
    ),
    Line(
        "the list of commands with all distributions",
        COMMAND + "shown = run()\nprint(max(map(len, shown.splitlines())) <= 80, 'pip install' in shown)",
        exactly("True False"),
        with_all=True,
    ),
    Line(
        "a CSV with other columns",
        COMMAND + "Path('own.csv').write_text('when,length\\n1,2\\n')\nprint(run('replay', 'own.csv'))",
        r"(?s).*own\.csv.*TIMESTAMP.*",
        with_all=True,
    ),
    Line(
        "a gateway of a configuration, and watch",
        TOOLS + GATEWAY,
        exactly("0\npolls True width True\nTrue\nTrue"),
        with_all=True,
    ),
    Line("an agent and embeddings at fake engines", TOOLS + AGENT, exactly("look True\n2"), with_all=True),
    Line(
        "options that engines lack",
        TOOLS + "with FakeFleet(1, report_cached_tokens=False) as fleet:\n    print(run('doctor', *fleet.urls))",
        r"(?s).*--kv-events-config.*--enable-prompt-tokens-.*",
        with_all=True,
    ),
    Line(
        "the report of all policies",
        TOOLS + "run('replay', 'chat', '--count', '200', '--fleet', '2xa30', '--policy', 'all', '--html', 'all.html')\n"
        "print(Path('all.html').stat().st_size <= 500_000)",
        exactly("True"),
        with_all=True,
    ),
]


def wrong(line: Line, programs: Path) -> str | None:
    """Run a line; say what was wrong."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
        environment = {"HOME": home, "COLUMNS": "80", "PATH": f"{programs}:{os.defpath}", "LANG": "C.UTF-8"}
        environment |= {"PYTHONDEVMODE": "1"} if line.development else {}
        run = subprocess.run(
            [programs / "python", "-c", line.typed],
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


def requirement(name: str, folder: Path) -> str:
    """Name the wheel of a distribution, with its extras."""
    (wheel,) = folder.glob(f"{name.partition('[')[0].replace('-', '_')}-*.whl")
    return f"{name} @ {wheel.resolve().as_uri()}"


def main(folder: Path) -> int:
    """Run every line with the wheels in `folder`."""
    library = ["cachelb"]
    others = ["cachelb-gateway[events]", "cachelb-lab[plots]", "cachelb-fakes"]
    with tempfile.TemporaryDirectory() as environment:
        venv.create(environment, with_pip=True)
        programs = Path(environment, "bin")
        problems: list[str] = []
        for with_all, wanted in ((False, library), (True, others)):
            words = ["-m", "pip", "install", "--quiet", *(requirement(name, folder) for name in wanted)]
            subprocess.run([programs / "python", *words], check=True)
            lines = (line for line in LINES if line.with_all == with_all)
            problems += [problem for line in lines if (problem := wrong(line, programs))]
    print("\n".join(problems) or f"stranger: {len(LINES)} lines of the first hour work from the wheels")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
