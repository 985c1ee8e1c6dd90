"""Every configuration on the page about configurations loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cachelb import ConfigError, config

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
BLOCK = re.compile(r"^```(toml|yaml|json)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(*match.groups(), id=f"{match[1]}-{n}")
    for n, match in enumerate(BLOCK.finditer(PAGE.read_text("utf-8")))
]


@pytest.mark.parametrize(("suffix", "text"), BLOCKS)
def test_example_loads_and_everything_in_it_takes_effect(suffix: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / f"gateway.{suffix}"
    file.write_text(text, encoding="utf-8")
    loaded = config.load(file, environ={})
    assert loaded.unused == {}
    lines = {int(number) for origin in loaded.origins.values() for number in re.findall(rf"{file}:(\d+)", origin)}
    assigned = {n for n, line in enumerate(text.splitlines(), 1) if re.match(r"\s*[\w.]+(:| =) *[^#\s]", line)}
    assert lines >= assigned - {n for n, line in enumerate(text.splitlines(), 1) if "vllm_prefill_decode" in line}


@pytest.mark.parametrize("text", ["\n[router]\nblock_sise = 1\n", "\n" * 8 + "policy.objective = 'fast'\n"])
def test_error_on_the_page_is_the_one_there_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        config.load(file, environ={})
    assert f"\n{str(error.value).removeprefix(f'{tmp_path}/')}\n" in PAGE.read_text("utf-8")
