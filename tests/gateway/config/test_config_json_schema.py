"""The JSON Schema of configurations: what loads is valid, and unknown keys and wrong types are not."""

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
from tests.commands import app
from tests.gateway.config.test_config_errors import MISTAKES

from cachelb import policies
from cachelb.errors import ConfigError
from cachelb_gateway import config
from cachelb_gateway.config import schema
from cachelb_gateway.discovery.text import KINDS

SCHEMA = config.json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

IN_BOTH = re.compile("unknown key|must be a (table|list)|there is no (policy|mode)|has no type|has a name")
"""Messages of the loader for documents that the schema refuses as well."""


def loader_refuses(document: Mapping[str, Any]) -> str:
    """Return the refusal; what loads can be shown, and built if that asks no engine and no source of workers."""
    try:
        loaded = config.load(document, environ={})
    except ConfigError as error:
        assert str(error).startswith("mapping")  # noqa: PT017 - both outcomes are right
        return str(error)
    config.show(loaded)
    if loaded.load is None and not loaded.discovery and loaded.model_path is None:
        with loaded.build() as router:
            assert router.keys() == [worker.key for worker in loaded.workers]
    return ""


def agree(document: dict[str, Any]) -> None:
    """Everything that loads is valid; unknown keys and wrong kinds are neither."""
    refusal = loader_refuses(document)
    valid = VALIDATOR.is_valid(json.loads(json.dumps(document)))
    if not refusal:
        assert valid, list(VALIDATOR.iter_errors(document))
    elif IN_BOTH.search(refusal):
        assert not valid, (document, refusal)


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
    """Draw a few options of a table, and an unknown one now and then."""
    pairs = [st.tuples(st.just(key), near(option)) for key, option in options.items()]
    unknown = st.tuples(st.sampled_from(["block_sise", "key", "clock", *others]), VALUES)
    return st.lists(st.one_of(*pairs) | st.one_of(*pairs) | unknown, max_size=2).map(dict)


NAMES = st.sampled_from([*policies.POLICIES, *policies.ALIASES])
POLICY = NAMES.flatmap(
    lambda name: table(schema.policy_options(name)).map(lambda options: {"type": name.replace("-", "_"), **options})
)
WORKER = table(schema.worker_options(), "bootstrap_port").map(lambda options: {"url": "http://gpu0:8000", **options})
SHARED = table(schema.list_options("shared_caches")).map(lambda options: {"name": "store", **options})
PEERS = table(schema.list_options("peer_groups")).map(lambda options: {"name": "rack", **options})
SOURCE = st.sampled_from(list(KINDS)).flatmap(
    lambda kind: table(schema.discovery_options(kind)).map(lambda options: {"kind": kind, **options})
)
TABLES = {
    "router": table(schema.router_options(), "objective", "workers"),
    "policy": POLICY | NAMES,
    "decode_policy": POLICY | NAMES,
    "workers": st.lists(WORKER | st.just("gpu1"), max_size=2) | VALUES,
    "shared_caches": st.lists(SHARED, max_size=1) | VALUES,
    "peer_groups": st.lists(PEERS, max_size=2) | VALUES,
    "discovery": SOURCE | st.lists(SOURCE | st.just("dns:vllm:8000"), max_size=2),
    **{section: table(options) | st.none() for section, options in schema.sections().items()},
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


# === content ===


def test_options_have_types_choices_and_defaults() -> None:
    defs = SCHEMA["$defs"]
    assert defs["router"]["properties"]["block_size"] == {"type": "integer", "default": 16}
    assert defs["policy.adaptive"]["properties"]["objective"]["enum"] == ["balanced", "ttft", "e2e", "median"]
    assert defs["policy.cache-aware"]["properties"]["cache_threshold"]["default"] == 0.3
    bodies = defs["bodies"]["properties"]
    assert bodies["keeps_reasoning"]["anyOf"] == [{"type": "boolean"}, {"enum": ["empty-thought"]}, {"type": "null"}]
    assert bodies["match"] == {"enum": ["likely", "certain"], "default": "likely"}


@pytest.mark.parametrize(
    "document",
    [
        {"router": {"block_size": "16"}},
        {"router": {"policy": "random"}, "policy": {"type": "random", "cache_threshold": 0.3}},
        {"policy": {"type": "adaptive", "objective": "fast"}},
        {"workers": [{"url": "a", "wieght": 2}]},
        {"discovery": {"kind": "dns", "nam": "x"}},
        {"load": {"interval_s": "1"}},
        {"mode": {"type": "regular"}},
    ],
    ids=str,
)
def test_wrong_types_choices_and_keys_are_invalid(document: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(document)


def test_the_command_prints_the_schema() -> None:
    result = CliRunner().invoke(app, ["config", "schema"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, SCHEMA)
    assert result.stdout.startswith('{\n  "$schema": "https://json-schema.org/draft/2020-12/schema"')
