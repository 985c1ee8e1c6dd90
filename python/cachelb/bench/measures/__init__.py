"""What is measured, one task a file."""

from __future__ import annotations
