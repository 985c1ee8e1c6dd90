"""`python -m cachelb`: the command line, where the folder of scripts is not on the path."""

from __future__ import annotations

from cachelb.cli.main import main

if __name__ == "__main__":
    main()
