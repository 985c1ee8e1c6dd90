"""Every TOML, YAML and JSON block on the pages loads, by the reader that it is for."""

from __future__ import annotations

import asyncio
import importlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.docs.pages import ROOT, Block, definitions, parameters

from cachelb.errors import ConfigError
from cachelb.integrations.litellm import lifetimes
from cachelb.policies import plugins
from cachelb_gateway import config
from cachelb_gateway.discovery import FileWorkers

PAGE = ROOT / "docs" / "configuration.md"


def check_manifest(found: Any) -> None:
    kubernetes_validate.validate(found, "1.37", strict=True)


def check_crate(found: Any) -> None:
    ((name, options),) = found["dependencies"].items()
    manifest = ROOT / options["path"].removeprefix("../cachelb/") / "Cargo.toml"
    assert tomllib.loads(manifest.read_text("utf-8"))["package"]["name"] == name


def check_entry_points(found: Any) -> None:
    assert [*found["project"]["entry-points"]] == [plugins.GROUP]


def check_litellm_proxy(found: Any) -> None:
    example = yaml.safe_load((ROOT / "examples" / "litellm_proxy.yaml").read_text("utf-8"))
    assert found["litellm_settings"] == example["litellm_settings"]


def check_deployments(found: Any) -> None:
    assert [lifetimes.configured(deployment) for deployment in found["model_list"]] == [3600.0]


def check_balancer(found: Any) -> None:
    module, _, name = found["router_class"].rpartition(".")
    assert getattr(importlib.import_module(module), name)({}, found).get_all_servers() == []


OTHERS: dict[str, Callable[[Any], None]] = {
    "apiVersion": check_manifest,
    "dependencies": check_crate,
    "litellm_settings": check_litellm_proxy,
    "model_list": check_deployments,
    "router_class": check_balancer,
    "project": check_entry_points,
}
"""Checks of documents that are not for cachelb, by a key of them."""


def check_targets(text: str, tmp_path: Path) -> None:
    (tmp_path / "targets.json").write_text(text)
    assert asyncio.run(FileWorkers(tmp_path / "targets.json").look())[0]


def check_configuration(kind: str, text: str, tmp_path: Path) -> None:
    """It loads, and everything in it takes effect."""
    file = tmp_path / f"gateway.{kind}"
    file.write_text(text, encoding="utf-8")
    loaded = config.load(file, environ={})
    assert loaded.unused == {}


@pytest.mark.parametrize("block", parameters("toml", "yaml", "json"))
def test_document_is_right_for_its_reader(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules.py").write_text(definitions("docs/policies.md"))
    monkeypatch.syspath_prepend(tmp_path)
    # JSON is YAML.
    documents = [tomllib.loads(block.text)] if block.kind == "toml" else [*yaml.safe_load_all(block.text)]
    for found in documents:
        if isinstance(found, list):
            check_targets(block.text, tmp_path)
        elif keys := OTHERS.keys() & found.keys():
            OTHERS[keys.pop()](found)
        else:
            check_configuration(block.kind, block.text, tmp_path)


@pytest.mark.parametrize("text", ["[router]\nblock_sise = 1\n", "policy.objective = 'fast'\n"])
def test_error_on_the_page_is_the_one_there_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        config.load(file, environ={})
    assert f"\n{str(error.value).removeprefix(f'{tmp_path}/')}\n" in PAGE.read_text("utf-8")
