"""Every policy decides, explains and counts as it did when the golden files were written.

A change that is meant to change decisions renews them: `python -m tests.library.golden --write`.
"""

from __future__ import annotations

from itertools import zip_longest

import pytest
from tests.library.golden import api, traces


@pytest.mark.parametrize("kind", ["plain", "lossy"])
@pytest.mark.parametrize("policy", api.NAMES)
def test_trace_is_the_golden_one(policy: str, kind: str) -> None:
    golden = traces.path(policy, lossy=kind == "lossy").read_text().splitlines()
    found = traces.summary(policy, lossy=kind == "lossy")
    for before, now in zip_longest(golden, found):
        if before != now:
            full = f"python -m tests.library.golden --policy {policy}{' --lossy' * (kind == 'lossy')} --full"
            pytest.fail(f"{policy}, {kind}: was {before!r}, is {now!r}; `{full}` prints every line", pytrace=False)


def test_every_golden_file_is_of_a_policy() -> None:
    folder = traces.path("", lossy=False).parents[1]
    files = {(file.parent.name, file.stem) for file in folder.glob("*/*.txt")}
    assert files == {(kind, policy) for kind in ("plain", "lossy") for policy in api.NAMES}
