"""The click group; one file per command stands beside it."""

from __future__ import annotations

import click

from cachelb.cli.bench_agentic import bench
from cachelb.cli.config import config
from cachelb.cli.demo import demo
from cachelb.cli.doctor import doctor
from cachelb.cli.explain import explain
from cachelb.cli.league import league
from cachelb.cli.learn import learn
from cachelb.cli.replay import replay
from cachelb.cli.serve import serve
from cachelb.cli.watch import watch

_EXAMPLES = """\b
Examples:
  cachelb demo
  cachelb serve --worker http://gpu0:8000 --worker http://gpu1:8000
  cachelb bench agentic
  cachelb config gateway.toml --show
  cachelb doctor http://gpu0:8000 http://gpu1:8000
  cachelb explain decisions.jsonl
  cachelb league --quick
  cachelb learn fit decisions.jsonl -o costs.model
  cachelb watch http://127.0.0.1:8080/metrics
  cachelb replay conversation_trace.jsonl.xz --policy adaptive,random
"""


@click.group(epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(package_name="cachelb", message="cachelb %(version)s")
def app() -> None:
    """Serve a fleet of LLM engines, compare routing policies for it, and look into routers that run."""


for command in (bench, config, demo, doctor, explain, league, learn, replay, serve, watch):
    app.add_command(command)
