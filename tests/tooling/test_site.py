"""The site's check of the reference: every constructor is shown with its arguments and defaults."""

from __future__ import annotations

import importlib

import griffe
import pytest
from tests.programs import ROOT, check_of_ci

site = check_of_ci("build_site")
RADIX = (
    "RadixTree(*, max_units: int | None = None, page_size: int = {}, ttl_s: float | None = None, clock: object = None)"
)


def problems(shown: str) -> list[str]:
    return [
        each
        for each in site.signature_problems({"cachelb.index.RadixTree": shown})
        if "cachelb.index.RadixTree" in each
    ]


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (RADIX.format(1), []),
        (RADIX.format(2), ["the reference shows cachelb.index.RadixTree(page_size=2.0), not 1.0"]),
        (RADIX.replace(", ttl_s: float | None = None", "").format(1), ["the reference shows no argument ttl_s of"]),
    ],
    ids=["as it is", "another default", "an argument too few"],
)
def test_what_a_signature_lacks_is_named(shown: str, found: list[str]) -> None:
    assert [each[: len(start)] for each, start in zip(problems(shown), found, strict=True)] == found


def test_a_class_without_a_constructor_lacks_every_argument() -> None:
    assert len(problems("")) == 4
    missing = {each.rpartition(" ")[2] for each in site.signature_problems({})}
    assert {
        "cachelb.Router",
        "cachelb.index.BlockTracker",
        "cachelb.policies.CacheAware",
        "cachelb_lab.sim.build",
    } <= missing
    assert (
        not {"cachelb.Decision", "cachelb.errors.ConfigError", "cachelb.policies.Policy", "cachelb.sources.Source"}
        & missing
    )


def test_constructors_that_are_no_init_are_given_to_the_reference() -> None:
    extensions = griffe.load_extensions(str(ROOT / ".ci" / "griffe_examples.py"))
    package = griffe.load("cachelb", search_paths=[str(ROOT / "python")], extensions=extensions)
    for name in ("Router", "index.BlockTracker", "index.RadixTree", "policies.LeastLoaded", "testing.Best"):
        found = package[name]
        made = (found.final_target if found.is_alias else found).members["__init__"]
        named = {parameter.name for parameter in made.parameters}
        module, _, own = f"cachelb.{name}".rpartition(".")
        assert dict(site.wanted(getattr(importlib.import_module(module), own))).keys() <= named
