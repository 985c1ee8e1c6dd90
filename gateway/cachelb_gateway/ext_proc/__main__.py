"""`python -m cachelb_gateway.ext_proc`: an endpoint picker from a configuration file."""

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
from typing import TYPE_CHECKING, Any

from cachelb.admission import text as admission_text
from cachelb.errors import ConfigError
from cachelb.router import Router
from cachelb_gateway import config
from cachelb_gateway.certificate import Certificate
from cachelb_gateway.discovery import KubernetesWorkers, from_text
from cachelb_gateway.ext_proc.certificates import self_signed, watch
from cachelb_gateway.ext_proc.pages import Pages
from cachelb_gateway.ext_proc.server import EndpointPicker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachelb.admission import AdmissionOptions

_log = logging.getLogger("cachelb.ext_proc")

_OF_PICKER = (
    *("large_bodies", "max_streams", "body_timeout_s", "idle_timeout_s", "stream_timeout_s", "policy_timeout_s"),
    *("fallbacks", "shed_inflight", "admission", "rewrite_model", "expose_headers", "conformance"),
)
"""Options that are those of `EndpointPicker`, by the same names."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m cachelb_gateway.ext_proc",
        description="Serve an endpoint picker for Envoy and other gateways that speak ext_proc.",
        epilog="example: python -m cachelb_gateway.ext_proc --config gateway.toml --listen 0.0.0.0:9002",
    )
    address = parser.add_mutually_exclusive_group()

    def add(*names: str, **options: Any) -> None:  # noqa: ANN401 - those of argparse
        shown = "" if options.get("default") in (None, []) else "; default: %(default)s"
        parser.add_argument(*names, **options | {"help": options["help"] + shown})

    port: dict[str, Any] = {"type": _anywhere, "metavar": "PORT"}
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    megabytes: dict[str, Any] = {"type": float, "metavar": "MB"}
    seconds: dict[str, Any] = {"type": float, "metavar": "S"}
    switch: dict[str, Any] = {"action": "store_true"}
    many: dict[str, Any] = {"action": "append", "default": []}
    add("--config", required=True, metavar="FILE", help="configuration of router and workers (TOML, YAML, JSON)")
    add("--discover", **many, metavar="SOURCE", help="also route to workers of, e.g., kubernetes:vllm:8000; repeatable")
    add("--endpoint-selector", metavar="LABELS", help="route to Kubernetes pods with these labels, such as app=vllm")
    add("--endpoint-target-ports", default="8000", metavar="PORT,...", help="ports of these pods")
    add("--pool-namespace", metavar="NAME", help="namespace of these pods; default: the picker's own")
    text = "address of ext_proc; default: %(default)s"
    address.add_argument("--listen", default="127.0.0.1:9002", metavar="HOST:PORT", help=text)
    text = "serve ext_proc on this port of all addresses"
    address.add_argument("--grpc-port", dest="listen", help=text, **port)
    add("--grpc-health-port", **port, help="serve gRPC health checks on this port, without TLS")
    add("--metrics-port", **port, help="serve /metrics, /healthz and /readyz on this port over HTTP")
    add("--secure-serving", **switch, help="use TLS, with a self-signed certificate unless --cert-path is set")
    add("--cert-path", type=Path, metavar="FOLDER", help="folder of tls.crt and tls.key; implies --secure-serving")
    add("--client-ca", type=Path, metavar="FILE", help="serve only clients with a certificate of this authority (PEM)")
    add("--enable-cert-reload", **switch, help="reload the files of --cert-path when they change")
    add("--tls-min-version", choices=["1.2", "1.3"], default="1.2", help="oldest version of TLS to accept")
    add("--fallbacks", **number, default=2, help="workers to name after the picked one, for retries")
    add("--max-body-mb", **megabytes, default=2, help="largest body to read")
    add("--large-bodies", choices=["refuse", "pass"], default="pass", help="refuse larger bodies or route them by load")
    add("--max-held-mb", **megabytes, default=256, help="memory for all requests that are held")
    add("--max-streams", **number, default=4096, help="most requests in flight")
    add("--body-timeout-s", **seconds, default=30, help="seconds within which a body must be complete")
    add("--idle-timeout-s", **seconds, default=600, help="longest pause within a request")
    add("--stream-timeout-s", **seconds, default=3600, help="longest duration of a request")
    add("--policy-timeout-s", **seconds, default=1, help="seconds that a policy in Python may take")
    text = "priority of requests with this x-llm-d-inference-objective or x-gateway-inference-objective; repeatable"
    add("--priority", **many, type=_priority, metavar="NAME=N", help=text)
    add("--shed-inflight", **number, help="answer 429 to negative priorities while N or more requests are in flight")
    text = (
        "hold requests while every worker is busy, and answer 429 to those that wait too long: options of "
        "cachelb.Admission, as in max_wait_s=1.5,max_pending_tokens=4096; 'default' for its defaults"
    )
    add("--admission", type=_admission, metavar="OPTIONS", help=text)
    add("--rewrite-model", **switch, help="replace the model in the body by x-gateway-model-name-rewrite")
    text = "headers of the decision that clients receive, such as x-cachelb-worker"
    add("--expose-headers", nargs="*", default=[], metavar="NAME", help=text)
    add("--conformance", **switch, help="obey the headers of the conformance tests; not for production")
    text = "seconds after SIGTERM within which open requests must finish"
    add("--drain-timeout", "--grace-s", **seconds, default=30, help=text)
    return parser.parse_args(arguments)


def _picker(router: Router[str], options: argparse.Namespace) -> EndpointPicker[str]:
    return EndpointPicker(
        router,
        max_body_bytes=int(options.max_body_mb * (1 << 20)),
        max_held_bytes=int(options.max_held_mb * (1 << 20)),
        priorities=dict(options.priority),
        **{name: getattr(options, name) for name in _OF_PICKER},
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
        router = stack.enter_context(config.load(options.config).build())
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
