"""The JSON Schema of configurations: it and the loader accept the same files, except for rules that no schema has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.test_config_errors import MISTAKES

from cachelb import ConfigError, config, policies
from cachelb.cli.app import app
from cachelb.config import schema
from cachelb.discovery.text import KINDS

SCHEMA = config.json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

ONLY_IN_THE_LOADER = re.compile(
    "contradicts |the same key as |is there already |it reads one|is the key of a worker"  # one thing written twice
    "|names policy .* but |holds options of policy .* but |names no policy"  # a policy that is named elsewhere
    "|policy 'adaptive' has no such option"  # the default, by a table that names none
    "|has no index of its own|are of no use beside|more than the .* of |give either"  # two settings
    "|hash_seed must be int|max_blocks_per_worker must be int"  # null, which the router takes and the policy does not
    "|printable|must be an address|must be http|must be a label selector|must name a |No such file"  # forms of texts
    "|secret must have 16 characters|workers names nobody|three numbers|cache_layout|groups are "  # sizes, inner tables
    "|router.models: block_size"
)
"""Messages of rules that a schema cannot express, or leaves out."""


def loader_refuses(document: Mapping[str, Any]) -> str:
    try:
        config.load(document, environ={})
    except (ConfigError, OSError) as error:
        return str(error)
    return ""


def agree(document: dict[str, Any]) -> None:
    refusal = loader_refuses(document)
    valid = VALIDATOR.is_valid(json.loads(json.dumps(document)))
    if not refusal:
        assert valid, list(VALIDATOR.iter_errors(document))
    elif valid:
        assert ONLY_IN_THE_LOADER.search(refusal), (document, refusal)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA


@pytest.mark.parametrize("document", [data for data, _ in MISTAKES], ids=str)
def test_mistakes_are_refused_by_both(document: dict[str, Any]) -> None:
    agree(document)


# === anything near a configuration ===

NUMBERS = st.sampled_from([0, 1, -1, 2, 16, 3.5, 0.25, 1.0001, 1024, 1025, 65_535, 65_536, 1 << 32, 1 << 64, -0.5])
VALUES = NUMBERS | st.sampled_from(
    [None, True, False, "", "x", "auto", "cpu", [], ["x"], [1, 2, 3], [0.5], {}, {"cpu": 1}, {"cpu": -1}, {"cpu": "x"}]
)


def near(option: schema.Option) -> st.SearchStrategy[Any]:
    """Draw mostly the default, a word that the option has, or a number; anything else now and then."""
    words = re.findall(r"[\"']([a-z0-9-]+)[\"']", option.annotation)
    usual = [] if option.is_required else [option.default]
    drawn = st.sampled_from([*usual, *words, "x"]) | NUMBERS | VALUES
    if re.match("Iterable|tuple", option.annotation):  # the loader reads the keys of a table, too
        drawn = drawn.filter(lambda value: value != "" and not isinstance(value, dict))
    return drawn


def table(options: Mapping[str, schema.Option], *others: str) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a few options of a table, under either spelling, and an unknown one now and then."""
    pairs = [st.tuples(st.sampled_from([key, key.replace("_", "-")]), near(option)) for key, option in options.items()]
    unknown = st.tuples(st.sampled_from(["block_sise", "key", "clock", *others]), VALUES)
    return st.lists(st.one_of(*pairs) | st.one_of(*pairs) | unknown, max_size=2).map(dict)


NAMES = st.sampled_from([*policies.POLICIES, *policies.ALIASES])
POLICY = NAMES.flatmap(
    lambda name: table(schema.policy_options(name)).map(lambda options: {"type": name.replace("-", "_"), **options})
)
WORKER = table(schema.worker_options(), "bootstrap_port").map(lambda options: {"url": "http://gpu0:8000", **options})
SHARED = table(schema.shared_cache_options()).map(lambda options: {"name": "store", **options})
SOURCE = st.sampled_from(list(KINDS)).flatmap(
    lambda kind: table(schema.discovery_options(kind)).map(lambda options: {"kind": kind, **options})
)
TABLES = {
    "router": table(schema.router_options(), "objective", "workers"),
    "policy": POLICY | NAMES,
    "decode_policy": POLICY | NAMES,
    "workers": st.lists(WORKER | st.just("gpu1"), max_size=2) | VALUES,
    "shared_caches": st.lists(SHARED, max_size=1) | VALUES,
    "discovery": SOURCE | st.lists(SOURCE | st.just("dns:vllm:8000"), max_size=2),
    **{
        section: table(schema.section_options(section) or {}) | st.none() for section in ("kv_events", "load", "bodies")
    },
}


@settings(max_examples=400)
@given(st.one_of(*(st.fixed_dictionaries({key: drawn}) for key, drawn in TABLES.items())))
def test_one_table_is_valid_if_it_loads_and_invalid_if_not(document: dict[str, Any]) -> None:
    agree(document)


@settings(max_examples=200)
@given(
    st.fixed_dictionaries({}, optional={**TABLES, "model_path": VALUES, "routing": TABLES["router"], "polici": VALUES})
)
def test_a_file_is_valid_if_it_loads_and_invalid_if_not(document: dict[str, Any]) -> None:
    agree(document)


@settings(max_examples=200)
@given(NAMES, st.data())
def test_options_are_those_of_the_policy_that_the_router_names(name: str, data: st.DataObject) -> None:
    options = data.draw(table(schema.policy_options(name)) | table(schema.policy_options(data.draw(NAMES))))
    agree({"router": {"policy": name}, "policy": options})


# === ends of ranges ===


def test_ends_of_ranges_are_exact() -> None:
    """Each bound of an option of a policy is the last value that its class takes."""
    ends = 0
    for name in policies.POLICIES:
        for key, option in SCHEMA["$defs"][f"policy.{name}"]["properties"].items():
            kinds = [kind for kind in option.get("anyOf", [option]) if kind.get("type") == "integer"]
            for kind in kinds:
                for end, step in (("minimum", -1), ("maximum", 1)):
                    policies.make(name, **{key: kind[end]}, **_beside(key))
                    with pytest.raises((ValueError, OverflowError), match=key):
                        policies.make(name, **{key: kind[end] + step}, **_beside(key))
                    ends += 1
    assert ends > 100


def _beside(key: str) -> dict[str, Any]:
    """Return what lets two options take their whole ranges that limit each other."""
    others = {"eviction_target_chars": {"eviction_threshold_chars": (1 << 64) - 1}}
    return others.get(key, {"eviction_target_chars": 0} if key == "eviction_threshold_chars" else {})


def test_open_ends_have_the_number_that_is_refused() -> None:
    ttl = SCHEMA["$defs"]["shared_cache"]["properties"]["ttl_s"]["anyOf"][0]
    assert ttl == {"type": "number", "exclusiveMinimum": 0}
    share = SCHEMA["$defs"]["policy.cache-aware"]["properties"]["cache_threshold"]
    assert (share["minimum"], share["maximum"], share["default"]) == (0, 1, 0.3)


def test_the_command_prints_the_schema() -> None:
    result = CliRunner().invoke(app, ["config", "schema"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, SCHEMA)
    assert result.stdout.startswith('{\n  "$schema": "https://json-schema.org/draft/2020-12/schema"')
