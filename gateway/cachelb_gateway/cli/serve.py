"""`cachelb serve`: a gateway in front of OpenAI-compatible engines."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import click

from cachelb.bodies import RequestBodies
from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, FILE, admission_option, option
from cachelb.errors import CachelbError, ConfigError
from cachelb_gateway import config as configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb.router import Router
    from cachelb_gateway.serve import Certificate, Gateway

_log = logging.getLogger("cachelb_gateway.serve")

_SECONDS: Final = click.FloatRange(min=0)
_MEGABYTE: Final = 1 << 20
_NONE: Final = "none"
_READ: Final = click.Path(path_type=Path, dir_okay=False, exists=True)
_RELOAD_S: Final = 60.0
_END_S: Final = 0.05
_EXAMPLES = """\b
Examples:
  cachelb serve --worker http://gpu0:8000 --worker http://gpu1:8000
  cachelb serve --config gateway.toml --listen 0.0.0.0:8080 --snapshot router.snapshot
  cachelb serve --discover kubernetes:llm/vllm:8000 --listen 0.0.0.0:8080
  cachelb serve --worker unix:///run/vllm.sock --listen unix:/run/gateway.sock --records decisions.jsonl
  cachelb serve --worker http://gpu0:8000 --admission max_wait_s=1.5,max_pending_tokens=4096
  cachelb serve --config gateway.toml --admin 0.0.0.0:9090 --admin-token-file token
  cachelb serve --config gateway.toml --access-log - --access-log-format json
"""


@click.command(epilog=_EXAMPLES, short_help="Serve a gateway for a fleet of engines.")
@option("--worker workers", None, "URL", "URL of an engine: http://, https:// or unix:///; repeatable.", multiple=True)
@click.option(
    "--discover",
    multiple=True,
    metavar="SOURCE",
    help="Source that finds workers: dns:vllm:8000, file:PATH or kubernetes:NAMESPACE/SERVICE:PORT; repeatable.",
)
@click.option("--config", "config_file", type=_READ, help="Configuration of router and workers (TOML, YAML, JSON).")
@click.option("--policy", metavar="NAME", help="Policy of the router, in place of the configured one.")
@option("--listen", "127.0.0.1:8080", "HOST:PORT", "Address for clients, or unix:/path.")
@option("--admin", "127.0.0.1:9090", "HOST:PORT", "Address for operators, or unix:/path, or none.")
@click.option(
    "--admin-token-file",
    type=_READ,
    help="File with the bearer token of the admin address, required unless it is a loopback address.",
)
@click.option(
    "--snapshot",
    type=FILE,
    help="File that keeps the cached prefixes of workers over a restart; needs a secret (CACHELB_SECRET).",
)
@click.option("--records", type=FILE, help="File that gets a line for each finished request, for cachelb explain.")
@click.option(
    "--capture", is_flag=True, help="Allow cachelb doctor capture to record traffic through the admin address."
)
@click.option("--tls-cert", type=_READ, help="Certificate chain (PEM) of the address for clients; reloaded on change.")
@click.option("--tls-key", type=_READ, help="Private key (PEM) of --tls-cert, unless it is in the same file.")
@click.option("--client-ca", type=_READ, help="Serve only clients with a certificate of these authorities (PEM).")
@click.option(
    "--upstream-ca", type=_READ, help="Certificates (PEM) of the authorities that https:// workers are checked against."
)
@click.option(
    "--expose-headers",
    multiple=True,
    metavar="NAME",
    help="Header of the decision that clients receive, such as x-cachelb-worker; repeatable.",
)
@click.option("--access-log", metavar="PATH", help="File that gets a line for each request, or - for standard output.")
@option("--access-log-format", "text", click.Choice(["text", "json"]), "Format of its lines.")
@option("--log-level", "info", click.Choice(["debug", "info", "warning", "error"]), "Least level of log lines.")
@option("--attempts", 3, COUNT, "Most workers that a request is sent to before the first byte of an answer.")
@option("--wait-s", 5.0, _SECONDS, "Seconds that a request waits for a worker to become available.")
@option("--max-body-mb", 32, COUNT, "Largest body of a request (MB).")
@option("--body-timeout-s", 30.0, _SECONDS, "Seconds within which a body must be complete.")
@option("--head-timeout-s", 15.0, _SECONDS, "Seconds within which the head of a request must be complete.")
@option("--keep-alive-s", 75.0, _SECONDS, "Seconds after which an idle connection of a client is closed.")
@option("--max-connections", 16_384, COUNT, "Most connections of clients.")
@option("--max-open", 4096, COUNT, "Most requests in flight; more get a 503.")
@option("--max-held-mb", 512, COUNT, "Memory for the bodies of all requests in flight (MB).")
@admission_option("Hold prompts while every worker is busy, and answer 429 to those that wait too long")
@option("--connect-timeout-s", 5.0, _SECONDS, "Seconds that connecting to a worker may take.")
@option("--first-byte-timeout-s", None, _SECONDS, "Seconds for the first byte, after which another worker is tried.")
@option("--idle-timeout-s", 600.0, _SECONDS, "Seconds without a byte of an answer after which a request ends.")
@option("--health-interval-s", 2.0, _SECONDS, "Seconds between two GET /health of a worker; 0 sends none.")
@option("--policy-timeout-s", 1.0, _SECONDS, "Seconds that a policy or a renderer in Python may take.")
@option("--threads", None, COUNT, "Threads that serve; by default one for each processor, at most 4.")
@option("--drain-s", 2.0, _SECONDS, "Seconds after SIGTERM in which /ready fails and requests are still served.")
@option("--grace-s", 30.0, _SECONDS, "Seconds after SIGTERM within which open requests must finish.")
def serve(**options: Any) -> None:  # noqa: ANN401 - of many types
    """Serve a gateway that routes each request to the worker that caches its prompt.

    Every path and method is passed on, /v1/models of all workers as one. /health and /ready are for probes. SIGTERM
    ends it: not ready, then no new requests, then the end of open ones. SIGHUP reloads the certificate. The admin
    address has /metrics for cachelb watch, /dump, and with --capture /capture.
    """
    level = options.pop("log_level").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with shown(CachelbError, ValueError, TypeError, OSError, RuntimeError, ModuleNotFoundError):
        _run(**options)


def build_router(
    workers: Sequence[str], config_file: Path | None, max_body_bytes: int, policy: str | None = None
) -> Router[str]:
    """Build the router with its workers: those of the command line, which win, of the environment, or of the file."""
    from cachelb._core import check_worker, worker_name

    if any("," in worker for worker in workers):
        raise click.UsageError("--worker takes one URL, and is repeated for each")
    if len(set(workers)) < len(workers):
        raise click.UsageError("a --worker is named twice")
    environ = dict(os.environ)
    if workers:
        environ["CACHELB_WORKERS"] = ",".join(workers)
    if policy is not None:
        environ["CACHELB_POLICY"] = policy
    loaded = configuration.load({} if config_file is None else config_file, environ=environ)
    for worker in loaded.workers:
        wrong = check_worker(worker.key)
        if wrong is not None:
            raise ConfigError(f"worker {worker_name(worker.key)!r} {wrong}")
        if worker.role == "prefill":
            raise ConfigError(f"worker {worker!r}: cachelb serve has no pairs of prefill and decode workers")
    bodies = dataclasses.replace(loaded.bodies or RequestBodies(), strict=True, max_bytes=max_body_bytes)
    return dataclasses.replace(loaded, bodies=bodies, load=loaded.load or {}).build()


def _run(
    *,
    workers: Sequence[str],
    discover: Sequence[str],
    config_file: Path | None,
    policy: str | None,
    snapshot: Path | None,
    records: Path | None,
    max_body_mb: int,
    **options: Any,  # noqa: ANN401 - of many types
) -> None:
    with build_router(workers, config_file, max_body_mb * _MEGABYTE, policy) as router:
        for text in discover:
            from cachelb_gateway.discovery import from_text

            router.attach(from_text(text))
        if not discover and not router.keys():
            _log.warning("there are no workers: name them with --worker or --discover, or in the configuration")
        if records is not None:
            from cachelb.records import JsonlRecords

            router.attach(JsonlRecords(records))
        if snapshot is not None:
            from cachelb.state import SnapshotFile

            file = SnapshotFile(snapshot)
            router.attach(file)
            _log.info("%s", file.stats().start)
        _serve(router, max_body_bytes=max_body_mb * _MEGABYTE, **options)


def _serve(
    router: Router[str],
    *,
    listen: str,
    admin: str,
    admin_token_file: Path | None,
    capture: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    drain_s: float,
    grace_s: float,
    max_held_mb: int,
    health_interval_s: float,
    **settings: Any,  # noqa: ANN401 - those of `Gateway`
) -> None:
    from cachelb_gateway.serve import Certificate, Gateway
    from cachelb_gateway.serve.addresses import check_address, is_local

    if admin == _NONE and capture:
        raise click.UsageError("--capture needs an --admin address")
    if admin != _NONE:
        check_address(admin)
        if admin_token_file is None and not is_local(admin):
            raise click.UsageError(f"--admin {admin} is no loopback address: give --admin-token-file")
    if tls_cert is None and (tls_key or client_ca) is not None:
        raise click.UsageError("--tls-key and --client-ca need --tls-cert")
    certificate = None if tls_cert is None else Certificate(tls_cert, tls_key or tls_cert, client_ca)
    token = None if admin_token_file is None else admin_token_file.read_text("utf-8").strip()
    gateway = Gateway(
        router, max_held_bytes=max_held_mb * _MEGABYTE, health_interval_s=health_interval_s or None, **settings
    )
    with gateway:
        gateway.start(
            listen,
            admin=None if admin == _NONE else admin,
            admin_token=token,
            capture=capture,
            certificate=certificate,
        )
        received: SimpleQueue[int] = SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: received.put(got))
        click.echo(f"serving on {gateway.urls[0]}")
        if gateway.admin_url is not None:
            click.echo(f"admin on {gateway.admin_url}")
        click.echo(f"{len(router.keys())} workers, policy {router.policy.name}")
        is_drained = _wait(received, gateway, certificate) != signal.SIGINT
        # Signals interrupt no call of the server: a second one is received here.
        times = (drain_s if is_drained else 0.0, grace_s)
        ending = threading.Thread(target=gateway.stop, args=times, name="cachelb-serve-end")
        ending.start()
        while ending.is_alive():
            if not received.empty() and received.get() != signal.SIGHUP:
                gateway.stop(0.0, 0.0)
            ending.join(_END_S)
    _log.info("ended")


def _wait(received: SimpleQueue[int], gateway: Gateway, certificate: Certificate | None) -> int:
    """Return the signal that ends the gateway; until then, reload the certificate when it changes."""
    complaint = None
    while True:
        try:
            number = received.get(timeout=_RELOAD_S)
        except Empty:
            number = signal.SIGHUP
        if number != signal.SIGHUP:
            return number
        if certificate is None:
            continue
        try:
            if gateway.reload_certificate(certificate):
                _log.info("the certificate was replaced")
            complaint = None
        except (OSError, ValueError) as error:
            if str(error) != complaint:
                complaint = str(error)
                _log.error("the certificate was not replaced: %s", complaint)
