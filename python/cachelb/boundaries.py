"""Where the messages of a prompt end, in tokens."""

from __future__ import annotations
