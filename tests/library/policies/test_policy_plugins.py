"""Policies that other distributions register, and those that are named as `module:Class`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cachelb
from cachelb import Router, policies
from cachelb_gateway import config

Install = Callable[..., None]

MODULE = """
from cachelb.policies import LeastLoaded

class Last:
    name = "last"
    needs = frozenset()

    def __init__(self, *, offset=1):
        self.offset = offset

    def choose(self, request, fleet):
        return len(fleet) - self.offset

class Tokens(LeastLoaded):
    pass

class NoPolicy:
    pass

class Nameless:
    def choose(self, request, fleet):
        return 0

number = 3
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a tiny distribution in a folder of its own."""
    installed: list[str] = []

    def write(distribution: str, *entries: str, module: str | None = MODULE) -> None:
        folder = tmp_path / distribution
        info = folder / f"{distribution}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text("\n".join(["[cachelb.policies]", *entries, ""]))
        if module is not None:
            (folder / f"{distribution}.py").write_text(module)
        installed.append(distribution)
        monkeypatch.syspath_prepend(str(folder))

    yield write
    for name in installed:
        sys.modules.pop(name, None)


def test_registered_policy_is_made_by_name_with_its_options(install: Install) -> None:
    install("acme", "my_last = acme:Last", "my-tokens = acme:Tokens")
    assert policies.make("my-last").name == "last"
    router = Router(["a", "b", "c"], policy=policies.make("my_last", offset=2))
    decision = router.select_worker(by_load=True)
    assert (decision.worker, decision.reason, router.policy.name) == ("b", "custom", "last")
    with pytest.raises(
        TypeError, match=r"set by Router\(\.\.\., policy=cachelb\.policies\.make\('my_last', offset=\.\.\.\)\)"
    ):
        Router(["a"], policy="my_last", offset=2)  # type: ignore[call-arg]
    own = policies.make("my_tokens", load="tokens")
    assert isinstance(own, policies.LeastLoaded)
    assert Router(["a"], shadow=["my-last", own]).policy.shadows == ("last", "least-loaded")


def test_registered_policy_may_be_configured(install: Install) -> None:
    install("acme", "my-last = acme:Last")
    written = {"router": {"policy": "my-last"}, "policy": {"offset": 3}, "workers": ["a", "b", "c"]}
    assert config.load(written).build().select_worker(by_load=True).worker == "a"


def test_built_in_names_are_not_taken_over_and_look_up_nothing(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme", "random = acme:Last")

    def look_up(**_: object) -> None:
        raise AssertionError("looked up")

    monkeypatch.setattr("importlib.metadata.entry_points", look_up)
    assert isinstance(policies.make("random"), policies.Random)


def test_unknown_name_is_answered_with_the_nearest_registered_one(install: Install) -> None:
    install("acme", "my_last = acme:Last")
    with pytest.raises(ValueError, match="there is no policy 'my_lost'; did you mean 'my-last'"):
        policies.make("my_lost")


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ("x = acme:Missing", cachelb.CachelbError, r"cannot be imported from 'acme:Missing': AttributeError: "),
        ("x = acne:Last", cachelb.CachelbError, r"cannot be imported from 'acne:Last': ModuleNotFoundError: "),
        ("x = acme:number", TypeError, r"'acme:number' must be a class, not int"),
        ("x = acme:NoPolicy", TypeError, r"an object with choose\(request, fleet\), not NoPolicy"),
    ],
)
def test_broken_entry_point_names_the_distribution(
    install: Install, entry: str, error: type[Exception], message: str
) -> None:
    install("acme", entry)
    with pytest.raises(error, match=f"^policy 'x' of distribution 'acme'.*{message}"):
        policies.make("x")


def test_module_that_fails_names_the_distribution(install: Install) -> None:
    install("acme", "x = acme:Last", module="1 / 0")
    with pytest.raises(
        cachelb.CachelbError, match=r"distribution 'acme' cannot be imported .*ZeroDivisionError"
    ) as caught:
        policies.make("x")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_name_that_two_distributions_register_is_refused(install: Install) -> None:
    install("acme", "x = acme:Last")
    install("bolt", "x = bolt:Last")
    with pytest.raises(
        cachelb.CachelbError, match="by distribution 'acme' and distribution 'bolt'; uninstall all but one"
    ):
        policies.make("x")


# === module:Class ===


def test_module_and_class_name_a_policy_wherever_one_is_named(install: Install) -> None:
    install("acme")
    decision = Router(["a", "b", "c"], policy=policies.make("acme:Last", offset=2)).select_worker(by_load=True)
    assert (decision.worker, decision.reason) == ("b", "custom")
    written = {"router": {"policy": "acme:Last", "shadow": ["acme:Tokens"]}, "policy": {"offset": 3}}
    loaded = config.load({**written, "workers": ["a", "b", "c"]})
    router = loaded.build()
    assert (router.select_worker(by_load=True).worker, router.policy.shadows) == ("a", ("least-loaded",))
    assert [loaded.policy.name, *(each.name for each in loaded.shadow)] == ["acme:Last", "acme:Tokens"]


def test_command_line_runs_a_policy_of_the_current_directory(tmp_path: Path) -> None:
    """Its options count: the last worker but one takes every request."""
    (tmp_path / "rules.py").write_text(MODULE)
    names = "rules:Last(offset=2),rules:Tokens+events,vllm_cache_aware"
    command = "from cachelb.cli.main import main; main()"
    arguments = ("replay", "chat", "--count", "30", "--fleet", "4xh100-80", "--json", "--policy", names)
    done = subprocess.run(
        [sys.executable, "-P", "-c", command, *arguments], cwd=tmp_path, check=True, capture_output=True
    )
    runs = {run["policy"]: run for run in json.loads(done.stdout)["cells"]}
    assert set(runs) == {"rules:Last(offset=2)", "rules:Tokens+events", "cache-aware"}
    of_last = runs["rules:Last(offset=2)"]["runs"][0]["metrics"]
    assert (of_last["requests"]["max_over_mean"], of_last["reasons"]) == (4, {"custom": 30})


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("acne.rules:Last", ValueError, "there is no module 'acne'; install it, or start in the folder that holds it"),
        ("acme:Lost", ValueError, "module 'acme' has no class 'Lost'; did you mean 'Last'?"),
        (":Last", ValueError, "module '' cannot be imported: ValueError: "),
        ("acme:NoPolicy", TypeError, "must be a class with choose(request, fleet), not the class NoPolicy"),
        ("acme:number", TypeError, "must be a class with choose(request, fleet), not int"),
        ("os:abort", TypeError, "must be a class with choose(request, fleet), not builtin_function_or_method"),
        ("acme:Nameless", TypeError, "Nameless.name must be a str that is not empty, not None"),
    ],
)
def test_wrong_module_or_class_names_the_value_and_the_way_out(
    install: Install, name: str, error: type[Exception], message: str
) -> None:
    install("acme")
    with pytest.raises(error, match=re.escape(f"policy {name!r}: {message}")):
        policies.make(name)
    with pytest.raises(cachelb.errors.ConfigError, match=re.escape(f"mapping: router.policy: policy {name!r}: ")):
        config.load({"router": {"policy": name}}, environ={})


def test_module_that_fails_is_named_with_its_error(install: Install) -> None:
    install("acme", module="import acne")
    with pytest.raises(
        ValueError, match="module 'acme' cannot be imported: ModuleNotFoundError: No module named 'acne'"
    ):
        policies.make("acme:Last")
