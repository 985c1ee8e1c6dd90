"""`python -m cachelb_fakes`: fake engines to try a gateway with."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading

from cachelb_fakes.fleet import FakeFleet


def main() -> None:
    """Serve fake engines, print their URLs, a line each, and wait for the end."""
    parser = argparse.ArgumentParser(
        prog="python -m cachelb_fakes",
        description="Start fake engines that speak the API of vLLM, each with a prefix cache of its own.",
        epilog="example: python -m cachelb_fakes --workers 2 --port 8001",
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=0, help="of the first one; the next follow. Default: any free ones")
    parser.add_argument("--model", action="append", metavar="NAME", help="that is served; repeatable. Default: any")
    parser.add_argument("--time-scale", type=float, default=0.0, help="1 for the speed of an engine; default: at once")
    options = parser.parse_args()
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    settings = {"first_port": options.port, "models": options.model, "time_scale": options.time_scale}
    with contextlib.suppress(KeyboardInterrupt), FakeFleet(options.workers, **settings) as fleet:
        for url in fleet.urls:
            sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        end.wait()


if __name__ == "__main__":
    main()
