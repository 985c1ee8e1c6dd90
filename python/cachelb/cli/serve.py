"""`cachelb serve`: a gateway in front of OpenAI-compatible engines."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cachelb import config as configuration
from cachelb.bodies import RequestBodies
from cachelb.cli.options import COUNT, FILE, admission_option, option
from cachelb.errors import CachelbError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb.router import Router

_log = logging.getLogger("cachelb.serve")

_SECONDS: Final = click.FloatRange(min=0)
_MEGABYTE: Final = 1 << 20
_NONE: Final = "none"
_READ: Final = click.Path(path_type=Path, dir_okay=False, exists=True)
_EXAMPLES = """\b
Examples:
  cachelb serve --worker http://gpu0:8000 --worker http://gpu1:8000
  cachelb serve --config gateway.toml --listen 0.0.0.0:8080 --snapshot router.snapshot
  cachelb serve --discover kubernetes:llm/vllm:8000 --listen 0.0.0.0:8080
  cachelb serve --worker unix:///run/vllm.sock --listen unix:/run/gateway.sock --records decisions.jsonl
  cachelb serve --worker http://gpu0:8000 --admission max_wait_s=1.5,max_pending_tokens=4096
  cachelb serve --config gateway.toml --admin 0.0.0.0:9090 --admin-token-file token
"""


@click.command(epilog=_EXAMPLES, short_help="Serve a gateway for a fleet of engines.")
@click.option(
    "--worker",
    "workers",
    metavar="URL",
    multiple=True,
    help="URL of an engine: http://, https:// or unix:///; repeatable.",
)
@click.option(
    "--discover",
    multiple=True,
    metavar="SOURCE",
    help="Source that finds workers: dns:vllm:8000, file:PATH or kubernetes:NAMESPACE/SERVICE:PORT; repeatable.",
)
@click.option("--config", "config_file", type=_READ, help="Configuration of router and workers (TOML, YAML, JSON).")
@click.option(
    "--listen",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for clients, or unix:/path.",
)
@click.option(
    "--admin",
    default="127.0.0.1:9090",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for operators, or unix:/path, or none.",
)
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
@click.option("--tls-cert", type=_READ, help="Certificate chain (PEM) of the address for clients.")
@click.option("--tls-key", type=_READ, help="Private key (PEM) of --tls-cert.")
@click.option(
    "--upstream-ca", type=_READ, help="Certificates (PEM) of the authorities that https:// workers are checked against."
)
@click.option(
    "--expose-headers",
    multiple=True,
    metavar="NAME",
    help="Header of the decision that clients receive, such as x-cachelb-worker; repeatable.",
)
@option("--attempts", 3, COUNT, "Most workers that a request is sent to before the first byte of an answer.")
@option("--wait-s", 5.0, _SECONDS, "Seconds that a request waits for a worker to become available.")
@option("--max-body-mb", 32, COUNT, "Largest body of a request (MB).")
@option("--body-timeout-s", 30.0, _SECONDS, "Seconds within which a body must be complete.")
@option("--max-open", 4096, COUNT, "Most requests in flight; more get a 503.")
@option("--max-held-mb", 512, COUNT, "Memory for the bodies of all requests in flight (MB).")
@admission_option("Hold prompts while every worker is busy, and answer 429 to those that wait too long")
@option("--idle-timeout-s", 600.0, _SECONDS, "Seconds without a byte of an answer after which a request ends.")
@option("--drain-s", 2.0, _SECONDS, "Seconds after SIGTERM in which /ready fails and requests are still served.")
@option("--grace-s", 30.0, _SECONDS, "Seconds after SIGTERM within which open requests must finish.")
def serve(**options: Any) -> None:  # noqa: ANN401 - of many types
    """Serve a gateway that routes each request to the worker that caches its prompt.

    Every path and method is passed on, /v1/models of all workers as one. /health and /ready are for probes. SIGTERM
    ends it: not ready, then no new requests, then the end of open ones. The admin address has /metrics for cachelb
    watch, /dump, and with --capture /capture.
    """
    from cachelb.extras import need

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        need("cachelb serve", "uvicorn", "httptools", "aiohttp", "prometheus_client")
        _run(**options)
    except (CachelbError, ValueError, TypeError, OSError, RuntimeError, ModuleNotFoundError) as error:
        raise click.ClickException(_message(error)) from error


def build_router(workers: Sequence[str], config_file: Path | None, max_body_bytes: int) -> Router[str]:
    """Build the router with its workers: those of the command line, which win, of the environment, or of the file."""
    from cachelb.serve.upstreams import read_address

    if any("," in worker for worker in workers):
        raise click.UsageError("--worker takes one URL, and is repeated for each")
    if len(set(workers)) < len(workers):
        raise click.UsageError("a --worker is named twice")
    environ = {**os.environ, "CACHELB_WORKERS": ",".join(workers)} if workers else None
    loaded = configuration.load({} if config_file is None else config_file, environ=environ)
    for worker in loaded.workers:
        read_address(worker.key)
        if worker.role == "prefill":
            raise ConfigError(f"worker {worker!r}: cachelb serve has no pairs of prefill and decode workers")
    bodies = dataclasses.replace(loaded.bodies or RequestBodies(), strict=True, max_bytes=max_body_bytes)
    return dataclasses.replace(loaded, bodies=bodies, load=loaded.load or {}).build()


def _run(
    *,
    workers: Sequence[str],
    discover: Sequence[str],
    config_file: Path | None,
    snapshot: Path | None,
    records: Path | None,
    max_body_mb: int,
    admin_token_file: Path | None,
    **options: Any,  # noqa: ANN401 - of many types
) -> None:
    from cachelb.serve.service import run_in_loop

    with build_router(workers, config_file, max_body_mb * _MEGABYTE) as router:
        for text in discover:
            from cachelb.discovery import from_text

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
        token = None if admin_token_file is None else admin_token_file.read_text("utf-8").strip()
        run_in_loop(_serve(router, admin_token=token, max_body_bytes=max_body_mb * _MEGABYTE, **options))


async def _serve(
    router: Router[str],
    *,
    listen: str,
    admin: str,
    admin_token: str | None,
    capture: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    upstream_ca: Path | None,
    drain_s: float,
    grace_s: float,
    max_held_mb: int,
    **settings: Any,  # noqa: ANN401 - those of `Gateway`
) -> None:
    from cachelb.serve import Admin, Gateway, Listener, Service, Upstreams
    from cachelb.serve.listener import quiet_server

    quiet_server()
    if admin == _NONE and capture:
        raise click.UsageError("--capture needs an --admin address")
    async with contextlib.AsyncExitStack() as stack:
        upstreams = await stack.enter_async_context(Upstreams(ca_file=upstream_ca))
        gateway = Gateway(router, upstreams, max_held_bytes=max_held_mb * _MEGABYTE, **settings)
        await stack.enter_async_context(gateway)
        operators = Admin(router, token=admin_token, readiness=gateway.readiness, capture=capture)
        inside = None
        if admin != _NONE:
            inside = Listener(operators, admin)
            stack.callback(inside.close)
            if not inside.is_local and admin_token is None:
                raise click.UsageError(f"--admin {admin} is no loopback address: give --admin-token-file")
        outside = Listener(gateway, listen, certificate=tls_cert, key=tls_key)
        stack.callback(outside.close)
        service = Service(gateway.readiness, [outside], gateway=gateway, admin=inside, drain_s=drain_s, grace_s=grace_s)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, service.stop)
        loop.add_signal_handler(signal.SIGINT, lambda: service.stop(at_once=True))
        for what, listener in (("serving", outside), ("admin", inside)):
            if listener is not None:
                click.echo(f"{what} on {listener.url}")
        click.echo(f"{len(router.keys())} workers, policy {router.policy}")
        await service.run()
    _log.info("ended")


def _message(error: Exception) -> str:
    """Describe an error in one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
