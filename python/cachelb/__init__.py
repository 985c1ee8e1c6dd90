"""cachelb: which replica already holds this prompt's KV cache."""

from __future__ import annotations
