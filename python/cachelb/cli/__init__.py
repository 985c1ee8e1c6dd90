"""The command `cachelb`, and what its commands share: options and tables, which need click and rich."""
