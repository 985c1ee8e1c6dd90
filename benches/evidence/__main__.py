"""Run published benchmarks of other projects through the simulator, and write docs/maintainers/evidence.md.

    python -m benches.evidence              # five minutes on one core
    python -m benches.evidence --quick      # a few stages of each, to stdout

Each result is a TOML file of this folder: where its figures are from, what is set, and the figures.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from benches.evidence.running import Outcome, published, rerun

PAGE = Path(__file__).parents[2] / "docs" / "maintainers" / "evidence.md"
FACTS = ("source", "hardware", "traffic", "given", "untuned", "misses")
HEAD = """# Published results, run again

Benchmarks that other projects published, simulated with one set of constants ([the simulator](../simulator.md)). A cell
is published / simulated (ratio); figures of `ours` were never published. `python -m benches.evidence` writes this page
from the files in `benches/evidence/`; the last full run was on {date}.

- **Constants**: those of [the simulator](simulator-measured.md#time-of-a-pass), with `attention_share=1.0` and
  `all_reduce=True` in every result. The fit of gpt-oss-120b needs the former: with .6, prompts of 48 K tokens take 14
  to 16 % too long.
- **Limits**: rates within 10 % in the mean over all stages and within 15 % in each stage from the knee on, TTFT p90
  within 25 % there, single requests within 10 %; arms that differ by 5 % in the published order; ours at most 2 %
  behind the best arm.

## Misses

{misses}

"""


def page(results: list[tuple[dict[str, str], list[Outcome]]], date: str) -> str:
    """Write the page: what misses its limit first, then every table."""
    missed = [
        f"- {result['title']}, {outcome.name}: {verdict.limit} ({verdict.found})"
        for result, outcomes in results
        for outcome in outcomes
        for verdict in outcome.verdicts
        if not verdict.holds
    ]
    text = HEAD.format(date=date, misses="\n".join(missed) or "None.")
    for result, outcomes in results:
        facts = [f"- **{fact.capitalize()}**: {result[fact]}" for fact in FACTS if fact in result]
        text += "\n".join([f"## {result['title']}", "", *facts, "", *(outcome.markdown() for outcome in outcomes), ""])
    return text.rstrip("\n") + "\n"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few stages of each, to stdout")
    quick = parser.parse_args().quick
    results = [(result, list(rerun(result, quick=quick))) for result in published()]
    text = page(results, f"{datetime.now(UTC):%Y-%m-%d}")
    if quick:
        print(text)
    else:
        PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
