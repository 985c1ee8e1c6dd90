"""The garbage collector may come while an object is being made."""

from __future__ import annotations

import subprocess
import sys

# Threads empty the list of free dictionaries, so that the one of a new router is allocated, which calls the collector.
MAKING = """
import gc, sys, threading
from cachelb import Router
sys.setswitchinterval(1e-6)
gc.set_threshold(5, 2, 2)
kept = []
def make():
    for _ in range(300):
        kept.append(Router(policy="random"))
threads = [threading.Thread(target=make) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_routers_are_made_while_the_collector_runs() -> None:
    done = subprocess.run([sys.executable, "-c", MAKING], check=False, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
