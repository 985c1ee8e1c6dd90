"""Options of policies: those of 0.1 keep name and default, or the upgrading page says what to use instead."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cachelb import policies
from cachelb.policies import POLICIES, BuiltinPolicy

OF_0_1: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "policy_options_0_1.json").read_text("utf-8")
)
CHANGED = re.compile(r"^\| `([a-z-]+)` \| `(\w+)` \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
REMOVED = re.compile(r"^\| `([a-z-]+)` \| (`[^|]*`) \| [^|]+ \|$", re.MULTILINE)


def upgrading() -> str:
    return (Path(__file__).parents[1] / "docs" / "upgrading.md").read_text("utf-8")


def removed() -> set[tuple[str, str]]:
    """Policies and options that the upgrading page lists as gone."""
    rows = REMOVED.findall(upgrading())
    return {(policy, option) for policy, options in rows for option in re.findall(r"`(\w+)`", options)}


def test_options_of_0_1_are_there_with_their_defaults_or_listed_as_removed_or_changed() -> None:
    gone = {
        (name, option)
        for name, options in OF_0_1.items()
        for option in options
        if name not in POLICIES or option not in POLICIES[name].keywords()
    }
    assert gone == removed()
    changed = {
        (name, option): (default, now)
        for name, options in OF_0_1.items()
        for option, default in options.items()
        if (name, option) not in gone
        for now in [POLICIES[name].keywords()[option][2]]
        if (list(now) if isinstance(now, tuple) else now) != default
    }
    assert set(changed) == set(CHANGED.findall(upgrading()))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_class_shows_its_own_options_in_signature_and_help(policy: type[BuiltinPolicy]) -> None:
    own = [name for name, *_ in policy.options]
    parameters = inspect.signature(policy).parameters
    assert list(parameters) == [*own, "shared"]
    assert all(parameters[name].default == default for name, _, default, _ in policy.options)
    assert all(text.strip().endswith(".") for *_, text in policy.keywords().values())
    assert all(f"    {name}: " in (policy.__doc__ or "") for name in own)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_defaults_given_by_name_are_what_a_policy_has_without(policy: type[BuiltinPolicy]) -> None:
    given = {name: default for name, _, default, _ in policy.keywords().values() if default is not None}
    workers = ["gpu0", "gpu1", "gpu2"]
    picks = [
        [made.select_worker(workers, tokens=range(i % 3, 400), session=f"s{i % 5}").worker for i in range(20)]
        for made in (policy(seed=7), policy(**{**given, "seed": 7}))
    ]
    assert picks[0] == picks[1]


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match="'cache-aware' has no option 'load_facter'; did you mean 'load_factor'"):
        policies.CacheAware(load_facter=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="policy 'round-robin' has no option 'hash_seed'"):
        policies.RoundRobin(hash_seed=1)  # type: ignore[call-arg]
