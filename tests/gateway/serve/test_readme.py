"""The commands of the README's first ten minutes, as they stand there but for the ports."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.http_client import DEADLINE_S
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text("utf-8").split("## Ten minutes\n")[1].split("\n## ")[0]


def block(kind: str) -> str:
    return README.split(f"```{kind}\n")[1].split("```")[0]


def test_commands_run_and_print_what_the_page_says(tmp_path: Path) -> None:
    install, commands = block("bash").split("\n", 1)
    assert install == "pip install . ./gateway ./fakes openai"
    (first,), (listen, admin) = free_ports(1, together=2), free_ports(2)
    ports = {"8001": first, "8002": first + 1, "8080": listen, "9090": admin}
    script = re.sub("|".join(ports), lambda found: str(ports[found[0]]), commands)
    script = script.replace("cachelb serve", f"cachelb serve --listen 127.0.0.1:{listen} --admin 127.0.0.1:{admin}")
    ready = (
        f"until {sys.executable} -c 'import socket; [socket.create_connection((\"127.0.0.1\", p)) for p in PORTS]' 2>&-"
    )
    script = script.replace("sleep 5", ready.replace("PORTS", str([first + 1, listen])) + "; do sleep 0.1; done")
    for name in ("cachelb", "python"):  # those of this environment
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {"-m cachelb" * (name == "cachelb")} "$@"\n')
        (tmp_path / name).chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    with subprocess.Popen(
        [bash, "-euc", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.wait(DEADLINE_S) == 0, process.stderr
        finally:
            os.killpg(process.pid, signal.SIGTERM)
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert block("text") in output
    assert "2 decisions, 0 open" in output
    assert {"cold 1", "prefix 1"} <= set(re.split(r"[:,\n] ?", output))
