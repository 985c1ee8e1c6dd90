"""Dynamo's books as `tests/models/dynamo_router.py` keeps them: whatever becomes of a request, nothing of it stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.models.dynamo_router import DynamoRouter

from cachelb.sim import build

ENDS: dict[str, Callable[[DynamoRouter, int], None]] = {
    "finished": lambda router, ticket: router.finished(ticket, 0, 1.0),
    "failed": lambda router, ticket: router.failed(ticket, 1.0),
    "cancelled": lambda router, ticket: router.cancelled(ticket, 1.0),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("answered", [False, True])
def test_books_are_empty_when_all_requests_ended(end: Callable[[DynamoRouter, int], None], answered: bool) -> None:
    requests = build("chat", seed=3, count=40)
    router = DynamoRouter(requests, 4, seed=1)
    tickets = [router.select(request, [], 0.0)[1] for request in range(40)]
    assert router.is_busy()
    for ticket in tickets:
        if answered:
            router.first_token(ticket, 0.5)
        end(router, ticket)
    assert not router.is_busy()
