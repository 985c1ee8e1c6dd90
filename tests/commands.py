"""The commands of all distributions, for click's runner."""

from __future__ import annotations

from importlib.metadata import entry_points

import click

from cachelb.cli.main import GROUP

app = click.Group("cachelb", commands={entry.name: entry.load() for entry in entry_points(group=GROUP)})
