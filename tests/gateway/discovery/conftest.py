"""The router that workers are found for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cachelb import Router


@pytest.fixture
def router() -> Iterator[Router[str]]:
    with Router[str]() as made:
        yield made
