"""Write transcripts, to compare those of two versions, or the golden files anew.

python -m tests.library.golden --policy cache-aware --full > before.txt
python -m tests.library.golden --write
"""

from __future__ import annotations

import argparse
import logging
import sys

from tests.library.golden import api, traces


def main() -> None:
    """Play the policies named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", action="append", choices=api.NAMES, help="play this one, not all")
    parser.add_argument("--lossy", action="store_true", help="play the lossy scenes too; --write always does")
    parser.add_argument("--full", action="store_true", help="print every line, not digests")
    parser.add_argument("--write", action="store_true", help="write the golden files")
    arguments = parser.parse_args()
    logging.disable()
    for policy in arguments.policy or api.NAMES:
        for lossy in (False, True) if arguments.lossy or arguments.write else (False,):
            if arguments.write:
                file = traces.path(policy, lossy=lossy)
                file.parent.mkdir(exist_ok=True)
                file.write_text("".join(f"{line}\n" for line in traces.summary(policy, lossy=lossy)))
            elif arguments.full:
                for heading, lines in traces.transcript(policy, lossy=lossy):
                    sys.stdout.writelines(f"{line}\n" for line in (f"== {policy}, {heading}", *lines))
            else:
                sys.stdout.writelines(f"{policy} {line}\n" for line in traces.summary(policy, lossy=lossy))


if __name__ == "__main__":
    main()
