"""`cachelb replay`: policies side by side, in simulated time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, FILE, NOT_NEGATIVE, POSITIVE, admission_option, json_option, option, parsed
from cachelb.errors import TraceError, did_you_mean
from cachelb_lab.cli.options import policy_option, run, threads_option
from cachelb_lab.cli.table import print_comparison, print_worst, table_text
from cachelb_lab.sim.experiments.comparison import Comparison, Sweep
from cachelb_lab.sim.figures.metrics import Slo
from cachelb_lab.sim.figures.worst import worst_requests
from cachelb_lab.sim.fleet import DEFAULT_MODEL, FleetSpec
from cachelb_lab.sim.gpus import GPUS, MODELS
from cachelb_lab.sim.simulation import Signals
from cachelb_lab.sim.workloads import WORKLOADS, Workload, build, read_workload

if TYPE_CHECKING:
    from cachelb.admission import AdmissionOptions

_BLOCK_SIZE = 16
OF_SOURCE = ("block_size", "rate", "count", "limit", "speed", "jitter")
"""Options of a command that a source takes."""


@dataclass
class Source:
    """Builds the workload of a seed, from a generator or a file.

    `rate` and `count` are for generators, `limit` (rows to read) for files. `speed` divides arrival times; `jitter`
    delays each arrival by up to that many seconds. Without `block_size`, the file's own or 16.
    """

    name: str
    block_size: int | None
    rate: float | None
    count: int | None
    limit: int | None
    speed: float
    jitter: float
    _file: Workload | None = None

    def __post_init__(self) -> None:
        if self.name in WORKLOADS:
            if self.limit is not None:
                raise click.UsageError(f"--limit is for files; {self.name!r} is a generator, which takes --count")
            self.block_size = self.block_size or _BLOCK_SIZE
            return
        for name, value in {"--rate": self.rate, "--count": self.count}.items():
            if value is not None and Path(self.name).exists():
                raise click.UsageError(f"{name} is for generators; a file takes --speed and --limit")
        self._file = _read(self.name, self.block_size, self.limit)
        self.block_size = self._file.block_size

    @property
    def has_seeds(self) -> bool:
        """Return whether seeds make a difference."""
        return self._file is None or self.jitter > 0

    def __call__(self, seed: int, *, rate: float | None = None) -> Workload:
        """Return the workload of a seed. `rate` replaces the generator's own; for a file it is a usage error."""
        with shown(ValueError, by=click.UsageError):
            return self._requests(seed, rate)

    def _requests(self, seed: int, rate: float | None) -> Workload:
        if self._file is None:
            rate = self.rate if rate is None else rate
            size = self.block_size or _BLOCK_SIZE
            workload = build(self.name, seed=seed, rate=rate, count=self.count, block_size=size)
        elif rate is None:
            workload = self._file
        else:
            raise ValueError("rate can be swept of generators only; sweep speed, which divides arrival times")
        if self.speed != 1:
            workload = workload.speed_up(self.speed)
        return workload.jitter(self.jitter, seed) if self.jitter else workload


def _read(name: str, block_size: int | None, limit: int | None) -> Workload:
    """Read a file."""
    file = Path(name)
    if not file.is_file():
        raise click.BadParameter(
            f"{name!r} is neither a file nor a generator{did_you_mean(name, WORKLOADS)}", param_hint="WORKLOAD"
        )
    size = shown(ValueError, by=partial(click.BadParameter, param_hint="--block-size"))
    with size, shown(TraceError, OSError, ModuleNotFoundError):
        return read_workload(file, block_size=block_size, limit=limit)


_SIGNALS = Signals()
_SECONDS = click.FloatRange(min=0)
_POLICIES = "adaptive,cache-aware,prefill-times-batch,least-loaded,round-robin"
_WORST = 5
_EXAMPLES = f"""\b
Examples:
  cachelb replay chat --rate 4 --count 5000
  cachelb replay conversation_trace.jsonl.xz --policy adaptive,round-robin --fleet 8xa100-80
  cachelb replay rag --fleet 8xa30+8xv100 --seeds 5 --slo ttft=1,tpot=50ms
  cachelb replay chat --fleet 8xh100/window=1024*5 --policy kv-aware,cache-aware
  cachelb replay trace.jsonl --policy kv-aware,kv-aware+oracle --event-lag 0.5 --explain
  cachelb replay bursts --seeds 3 --html bursts.html
  cachelb replay chat --rate 30 --slo ttft=2 --admission max_wait_s=1.5,max_pending_tokens=4096
  cachelb replay agent --policy cache-aware --sweep cache_threshold=0.1:0.9:0.2 --json > sweep.json

\b
Generators: {", ".join(WORKLOADS)}
GPUs:       {", ".join(GPUS)}
Models:     {", ".join(MODELS)}
"""


@click.command(epilog=_EXAMPLES, short_help="Run a workload through policies in a simulation.")
@click.argument("workload")
@policy_option(_POLICIES)
@option(
    "--fleet",
    "8xa100-80",
    "GROUPS",
    "Workers, such as 8xa30+4xh100:tp2; of hybrid models 8xh100/window=1024*5, /mamba*3 or /chunk=8192*3.",
)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Model that the workers serve.")
@option("--kv-tokens", None, COUNT, "Tokens EACH worker can cache; what its memory leaves by default.")
@option("--block-size", None, COUNT, "Tokens per block; 16, or as in the file.")
@option("--mfu", 1.0, POSITIVE, "Factor on the arithmetic that the GPUs reach; a sound ranking holds from 0.8 to 1.25.")
@option("--rate", None, POSITIVE, "Generators: arrivals per second; of sessions, where turns follow each other.")
@option("--count", None, COUNT, "Generators: requests.")
@option("--limit", None, COUNT, "Files: read the first rows only.")
@option("--speed", 1.0, POSITIVE, "Divide the arrival times: 2 sends requests twice as fast.")
@option(
    "--jitter",
    0.0,
    _SECONDS,
    "Delay each arrival by up to so many seconds; Mooncake's timestamps come in batches 3 s apart.",
)
@option("--seed", 0, NOT_NEGATIVE, "The first seed.")
@option(
    "--seeds", 1, COUNT, "Runs per policy, each with the next seed: of the policies, of generators and of --jitter."
)
@click.option(
    "--sweep",
    metavar="NAME=FROM:TO:STEP",
    callback=parsed(Sweep.parse),
    help="Run with each value of an option of the policies, or of speed, rate, mfu, kv_tokens, gateways, event_lag_s, "
    "scrape_interval_s, report_lag_s, net_delay_s, first_token_delay_s or decision_s; NAME=A,B,C lists them.",
)
@click.option(
    "--slo",
    metavar="ttft=TIME,tpot=TIME",
    callback=parsed(Slo.parse),
    help="Also print goodput: requests per second within the limits.",
)
@option(
    "--within",
    None,
    click.FloatRange(min=1),
    "Compare sessions with those of an idle fleet: most engine time of one on time, as a multiple.",
)
@admission_option("Hold and refuse requests before every policy that does not name other bounds")
@option("--event-lag", _SIGNALS.event_lag_s, _SECONDS, "Seconds KV events take to reach the gateway.")
@option("--scrape-interval", _SIGNALS.scrape_interval_s, POSITIVE, "Seconds between load reports.")
@option("--gateways", 1, COUNT, "Routers that share the fleet without sharing state.")
@threads_option()
@click.option("--explain", is_flag=True, help=f"Also print the {_WORST} slowest requests of each policy, and why.")
@option(
    "--export",
    None,
    FILE,
    "Write the requests of the first seed to a .jsonl, .jsonl.gz or .jsonl.xz file, which can be replayed.",
)
@option(
    "--html",
    None,
    FILE,
    "Write a page with pictures of the first seed: latencies, hit rates, load per worker and over time. "
    "Needs cachelb-lab[plots].",
)
@json_option()
def replay(
    *,
    workload: str,
    names: list[str],
    fleet: str,
    model: str,
    kv_tokens: int | None,
    mfu: float,
    seed: int,
    seeds: int,
    admission: AdmissionOptions | None,
    event_lag: float,
    scrape_interval: float,
    explain: bool,
    export: Path | None,
    html: Path | None,
    as_json: bool,
    **others: Any,  # noqa: ANN401 - those of `Source`, and of `compare`
) -> None:
    """Run WORKLOAD through policies on a simulated fleet of LLM engines.

    WORKLOAD is the name of a generator, or a file: Mooncake's JSON Lines, Azure's CSV, recorded
    sessions, captures, or JSON Lines of your own (docs/replay.md), plain or compressed (.gz, .xz, .zst).

    The real router decides on every request, from load reports, its own bookings and KV events
    that come as late as they do in a real fleet. Engines schedule and cache as vLLM does.
    Equal seeds give equal figures; only the time of decisions is that of this machine.
    """
    source = Source(workload, **{name: others.pop(name) for name in OF_SOURCE})
    with shown(ValueError, by=click.UsageError):
        workers = FleetSpec.parse(fleet, model=model, mfu=mfu, kv_tokens=kv_tokens, block_size=source.block_size)
        signals = Signals(event_lag_s=event_lag, scrape_interval_s=scrape_interval)
    if export is not None:
        with shown(OSError, ValueError, by=partial(click.BadParameter, param_hint="--export")):
            source(seed).save(export)
    comparison = run(
        source if source.has_seeds else source(seed),
        workers,
        names,
        as_json=as_json,
        seeds=range(seed, seed + seeds),
        signals=signals,
        **others,
        **({} if admission is None else asdict(admission)),
    )
    if html is not None:
        from cachelb_lab.plots import write_html

        with shown(OSError, ModuleNotFoundError):
            write_html(html, comparison, title=str(comparison.workload["name"]), table=table_text(comparison))
    if as_json:
        click.echo(_document(comparison, explain=explain))
        return
    print_comparison(comparison)
    if explain:
        for cell in comparison.cells:
            print_worst(cell, worst_requests(cell.result, _WORST))


def _document(comparison: Comparison, *, explain: bool) -> str:
    """Return the JSON document."""
    if not explain:
        return comparison.to_json()
    document = comparison.as_dict()
    for cell, table in zip(comparison.cells, document["cells"], strict=True):
        table["worst"] = [asdict(one) for one in worst_requests(cell.result, _WORST)]
    return json.dumps(document, indent=2, allow_nan=False)
