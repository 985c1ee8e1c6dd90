"""`python -m cachelb.integrations.ext_proc`: an endpoint picker from a configuration file."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from cachelb.errors import ConfigError
from cachelb.integrations.ext_proc.server import EndpointPicker
from cachelb.router import Router

_log = logging.getLogger("cachelb.ext_proc")
_OWN = frozenset({"config", "listen", "grace_s", "max_body_mb", "max_held_mb", "priority"})
"""Options that `EndpointPicker` does not have by this name."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m cachelb.integrations.ext_proc",
        description="Pick workers for Envoy and other gateways that speak ext_proc.",
        epilog="example: python -m cachelb.integrations.ext_proc --config gateway.toml --listen 0.0.0.0:9002",
    )
    parser.add_argument(
        "--config", required=True, metavar="FILE", help="TOML, YAML or JSON file with router and workers"
    )
    parser.add_argument("--listen", default="127.0.0.1:9002", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--fallbacks", type=int, default=2, metavar="N", help="workers named behind the picked one")
    parser.add_argument("--max-body-mb", type=float, default=2, metavar="MB", help="default: %(default)s")
    parser.add_argument("--large-bodies", choices=["refuse", "pass"], default="pass", help="default: %(default)s")
    parser.add_argument("--max-held-mb", type=float, default=256, metavar="MB", help="of all that is held; %(default)s")
    parser.add_argument("--max-streams", type=int, default=4096, metavar="N", help="default: %(default)s")
    parser.add_argument("--body-timeout-s", type=float, default=30, metavar="S", help="default: %(default)s")
    parser.add_argument("--idle-timeout-s", type=float, default=600, metavar="S", help="default: %(default)s")
    parser.add_argument("--stream-timeout-s", type=float, default=3600, metavar="S", help="default: %(default)s")
    parser.add_argument(
        "--priority",
        action="append",
        type=_priority,
        default=[],
        metavar="NAME=N",
        help="priority of an x-gateway-inference-objective; may be repeated",
    )
    parser.add_argument("--shed-inflight", type=int, metavar="N", help="answer 429 to negative priorities from N on")
    parser.add_argument("--rewrite-model", action="store_true", help="follow x-gateway-model-name-rewrite in the body")
    parser.add_argument("--expose-headers", nargs="*", default=[], metavar="NAME", help="of decisions, to clients")
    parser.add_argument("--conformance", action="store_true", help="obey and show test headers; never in production")
    parser.add_argument("--grace-s", type=float, default=30, metavar="S", help="for open streams at the end")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    with Router.from_config(options.config) as router:
        settings = {name: value for name, value in vars(options).items() if name not in _OWN}
        picker = EndpointPicker(
            router,
            max_body_bytes=int(options.max_body_mb * (1 << 20)),
            max_held_bytes=int(options.max_held_mb * (1 << 20)),
            priorities=dict(options.priority),
            **settings,
        )
        end = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end.set)
        async with picker:
            port = await picker.start(options.listen)
            _log.info("listening on %s:%d, %d workers", options.listen.rpartition(":")[0], port, len(router.keys()))
            await end.wait()
            await picker.stop(options.grace_s)
    _log.info("stopped: %s", picker.counts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        asyncio.run(serve(options))
    except (ConfigError, OSError, RuntimeError, ValueError) as error:
        _log.error("%s", error)
        return 1
    return 0


def _priority(text: str) -> tuple[str, int]:
    name, found, number = text.rpartition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N")
    return name, int(number)


if __name__ == "__main__":
    sys.exit(main())
