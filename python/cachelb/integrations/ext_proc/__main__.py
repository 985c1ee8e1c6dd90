"""`python -m cachelb.integrations.ext_proc`: an endpoint picker from a configuration file."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cachelb import admission_text
from cachelb.discovery import KubernetesWorkers, from_text
from cachelb.errors import ConfigError
from cachelb.integrations.ext_proc.certificates import self_signed, watch
from cachelb.integrations.ext_proc.pages import Pages
from cachelb.integrations.ext_proc.server import Certificate, EndpointPicker
from cachelb.router import Router

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachelb.admission import AdmissionOptions

_log = logging.getLogger("cachelb.ext_proc")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m cachelb.integrations.ext_proc",
        description="Pick workers for Envoy and other gateways that speak ext_proc.",
        epilog="example: python -m cachelb.integrations.ext_proc --config gateway.toml --listen 0.0.0.0:9002",
    )
    add = parser.add_argument
    add("--config", required=True, metavar="FILE", help="TOML, YAML or JSON file with router and workers")
    add(
        "--discover",
        action="append",
        default=[],
        metavar="SOURCE",
        help="where workers come from, beside those of the file, such as kubernetes:vllm:8000; may be repeated",
    )
    add("--endpoint-selector", metavar="LABELS", help="workers are the pods of Kubernetes with these, such as app=vllm")
    add("--endpoint-target-ports", default="8000", metavar="PORT,...", help="their ports; default: %(default)s")
    add("--pool-namespace", metavar="NAME", help="their namespace; default: the picker's own")
    address = parser.add_mutually_exclusive_group()
    address.add_argument("--listen", default="127.0.0.1:9002", metavar="HOST:PORT", help="default: %(default)s")
    address.add_argument("--grpc-port", dest="listen", type=_anywhere, metavar="PORT", help="the same on all addresses")
    add("--grpc-health-port", type=_anywhere, metavar="PORT", help="health checks alone, without TLS")
    add("--metrics-port", type=_anywhere, metavar="PORT", help="/metrics, /healthz and /readyz over HTTP")
    add("--secure-serving", action="store_true", help="TLS; signs a certificate itself without --cert-path")
    add("--cert-path", type=Path, metavar="FOLDER", help="of tls.crt and tls.key; implies --secure-serving")
    add("--client-ca", type=Path, metavar="FILE", help="PEM; only clients with a certificate of it are served")
    add("--enable-cert-reload", action="store_true", help="use changed files of --cert-path for new connections")
    add("--tls-min-version", choices=["1.2", "1.3"], default="1.2", help="default: %(default)s")
    add("--fallbacks", type=int, default=2, metavar="N", help="workers named behind the picked one")
    add("--max-body-mb", type=float, default=2, metavar="MB", help="default: %(default)s")
    add("--large-bodies", choices=["refuse", "pass"], default="pass", help="default: %(default)s")
    add("--max-held-mb", type=float, default=256, metavar="MB", help="of all that is held; default: %(default)s")
    add("--max-streams", type=int, default=4096, metavar="N", help="default: %(default)s")
    add("--body-timeout-s", type=float, default=30, metavar="S", help="default: %(default)s")
    add("--idle-timeout-s", type=float, default=600, metavar="S", help="default: %(default)s")
    add("--stream-timeout-s", type=float, default=3600, metavar="S", help="default: %(default)s")
    add("--policy-timeout-s", type=float, default=1, metavar="S", help="for policies in Python; default: %(default)s")
    add(
        "--priority",
        action="append",
        type=_priority,
        default=[],
        metavar="NAME=N",
        help="priority of an x-llm-d-inference-objective or x-gateway-inference-objective; may be repeated",
    )
    add("--shed-inflight", type=int, metavar="N", help="answer 429 to negative priorities from N on")
    add(
        "--admission",
        type=_admission,
        metavar="OPTIONS",
        help="hold requests while every worker is busy, and answer 429 to those that wait too long: options of "
        "cachelb.Admission, as in max_wait_s=1.5,max_pending_tokens=4096; 'default' for its defaults",
    )
    add("--rewrite-model", action="store_true", help="follow x-gateway-model-name-rewrite in the body")
    add("--expose-headers", nargs="*", default=[], metavar="NAME", help="of decisions, to clients")
    add("--conformance", action="store_true", help="obey and show test headers; never in production")
    add(
        "--drain-timeout",
        "--grace-s",
        type=float,
        default=30,
        metavar="S",
        help="for open streams at the end; default: %(default)s",
    )
    return parser.parse_args(arguments)


def _picker(router: Router[str], options: argparse.Namespace) -> EndpointPicker[str]:
    return EndpointPicker(
        router,
        max_body_bytes=int(options.max_body_mb * (1 << 20)),
        large_bodies=options.large_bodies,
        max_held_bytes=int(options.max_held_mb * (1 << 20)),
        max_streams=options.max_streams,
        body_timeout_s=options.body_timeout_s,
        idle_timeout_s=options.idle_timeout_s,
        stream_timeout_s=options.stream_timeout_s,
        policy_timeout_s=options.policy_timeout_s,
        fallbacks=options.fallbacks,
        priorities=dict(options.priority),
        shed_inflight=options.shed_inflight,
        admission=options.admission,
        rewrite_model=options.rewrite_model,
        expose_headers=options.expose_headers,
        conformance=options.conformance,
    )


@contextlib.contextmanager
def _certificate(options: argparse.Namespace) -> Iterator[Certificate | None]:
    with TemporaryDirectory() as own:
        folder = options.cert_path
        if folder is None and options.secure_serving:
            folder = self_signed(Path(own))
        yield (
            None
            if folder is None
            else Certificate(folder / "tls.crt", folder / "tls.key", options.client_ca, options.tls_min_version)
        )


async def serve(options: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    with contextlib.ExitStack() as stack:
        router = stack.enter_context(Router.from_config(options.config))
        for text in options.discover:
            router.attach(from_text(text))
        if options.endpoint_selector is not None:
            ports = options.endpoint_target_ports.split(",")
            pods = KubernetesWorkers(selector=options.endpoint_selector, namespace=options.pool_namespace, port=ports)
            router.attach(pods)
        picker = _picker(router, options)
        certificate = stack.enter_context(_certificate(options))
        if options.metrics_port is not None:
            pages = stack.enter_context(Pages(options.metrics_port, router, picker))
            _log.info("metrics on port %d", pages.port)
        async with picker:
            port = await picker.start(options.listen, health_listen=options.grpc_health_port, certificate=certificate)
            _log.info("listening on %s:%d, %d workers", options.listen.rpartition(":")[0], port, len(router.keys()))
            watching = None
            if certificate is not None and options.enable_cert_reload:
                watching = asyncio.create_task(watch(picker, certificate))
            await end.wait()
            if watching is not None:
                watching.cancel()
            await picker.stop(options.drain_timeout)
    _log.info("stopped: %s", picker.counts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(serve(options))
    except (ConfigError, ModuleNotFoundError, OSError, RuntimeError, ValueError) as error:
        _log.error("%s", error)
        return 1
    return 0


def _anywhere(port: str) -> str:
    if not port.isascii() or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{port!r} is no port")
    return f"0.0.0.0:{port}"


def _priority(text: str) -> tuple[str, int]:
    name, found, number = text.rpartition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N")
    return name, int(number)


def _admission(text: str) -> AdmissionOptions:
    try:
        return admission_text.parse(text)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
