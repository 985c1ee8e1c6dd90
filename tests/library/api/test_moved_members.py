"""Members of `Router` that have moved to a part of it answer by their old names, with a warning."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from cachelb import Router
from cachelb.common.moved import MEMBERS


@pytest.mark.parametrize("old", MEMBERS)
def test_an_old_name_warns_and_is_the_new_member(old: str) -> None:
    router: Any = Router(["a"])
    with pytest.warns(DeprecationWarning, match=rf"Router\.{old} has moved to Router\.{MEMBERS[old]}; "):
        found = getattr(router, old)
    new = attrgetter(MEMBERS[old])(router)
    assert getattr(found, "__func__", found) == getattr(new, "__func__", new)


def test_an_unknown_name_has_no_member() -> None:
    router: Any = Router(["a"])
    with pytest.raises(AttributeError, match="no attribute 'worker'"):
        _ = router.worker


def test_parts_show_their_policy_and_no_address() -> None:
    router = Router(["a"], policy="kv-aware")
    assert [repr(part) for part in (router.policy, router.records, router.shared_caches)] == [
        "RouterPolicy('kv-aware')",
        "Records(policy=RouterPolicy('kv-aware'))",
        "SharedCaches()",
    ]
