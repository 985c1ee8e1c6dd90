"""Servers that these tests may break: those of the tests of sharing."""

from __future__ import annotations

from tests.library.state.conftest import fleet, redis_fleet, server, shared_server

__all__ = ["fleet", "redis_fleet", "server", "shared_server"]
