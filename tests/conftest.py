"""Settings shared by every test."""

from __future__ import annotations

from hypothesis import settings

# One fixed seed and no deadline: a run must not depend on luck or on the machine's load.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None, print_blob=True)
settings.load_profile("fixed")
