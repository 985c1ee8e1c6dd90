"""The command `cachelb`: finds its commands, which other distributions bring, and maps outcomes to exit codes."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points, version
from typing import Final

from cachelb.errors import did_you_mean

GROUP: Final = "cachelb.commands"
COMMANDS: Final = {
    "cachelb-gateway": {
        "config": "Check a configuration file.",
        "doctor": "Check engines; capture and analyze traffic.",
        "serve": "Serve a gateway for a fleet of engines.",
        "watch": "Show the router of a running gateway.",
    },
    "cachelb-lab": {
        "bench": "Measure policies on simulated fleets.",
        "demo": "Run policies on a generated workload.",
        "explain": "Rank why prompt tokens missed the caches.",
        "league": "Rank policies over traces, fleets and faults.",
        "learn": "Train models of the cost of requests.",
        "replay": "Run a workload through policies in a simulation.",
    },
}
"""The commands of each distribution, in a line each."""

_MISUSED: Final = 2
_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: 0 success, 1 failure such as an unreadable trace, 2 wrong usage, 130 interrupt."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in {"-h", "--help"}:
        sys.stdout.write(listing())
    elif name == "--version":
        sys.stdout.write(f"cachelb {version('cachelb')}\n")
    else:
        raise SystemExit(_run(name, rest))
    raise SystemExit(0)


def _run(name: str, arguments: list[str]) -> int:
    found = entry_points(group=GROUP, name=name)
    if not found:
        sys.stderr.write(f"cachelb: {_missing(name)}\n")
        return _MISUSED
    import click

    if "" not in sys.path:  # the current directory, behind packages, so that no file in it takes the place of one
        sys.path.append("")
    command: click.Command = next(iter(found)).load()
    help_names = ["-h", "--help"]
    try:
        status = command.main(arguments, f"cachelb {name}", standalone_mode=False, help_option_names=help_names)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        sys.stderr.write("cachelb: interrupted\n")
        return _INTERRUPTED
    return int(status or 0)


def _missing(name: str) -> str:
    """Name the line that installs a command."""
    for distribution, commands in COMMANDS.items():
        if name in commands:
            return f"the command {name} is in {distribution}: pip install {distribution}"
    known = [name for commands in COMMANDS.values() for name in commands]
    return f"there is no command {name!r}{did_you_mean(name, known)}"


def listing() -> str:
    """List the commands by distribution, and those of others."""
    installed = {entry.name for entry in entry_points(group=GROUP)}
    lines = ["Usage: cachelb [-h | --version] COMMAND [ARGS]..."]
    for distribution, commands in COMMANDS.items():
        hint = "" if installed >= commands.keys() else f" (pip install {distribution})"
        lines += ["", f"Commands of {distribution}{hint}:"]
        lines += [f"  {name:8} {about}" for name, about in commands.items()]
        installed -= commands.keys()
    if installed:
        lines += ["", "Other commands:", *(f"  {name}" for name in sorted(installed))]
    return "\n".join([*lines, "", "cachelb COMMAND --help shows the options of one.", ""])
