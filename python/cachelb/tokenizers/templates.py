"""The chat templates of a model, and the files that they are in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cachelb.common.extras import need

if TYPE_CHECKING:
    from cachelb.tokenizers.template import ChatTemplate


class ChatTemplates:
    """Compiled templates: one, or several by name, of which "tool_use" is for chats with tools."""

    def __init__(self, sources: str | Mapping[str, str] | None, special_tokens: Mapping[str, str] | None) -> None:
        by_name = {"default": sources} if isinstance(sources, str) else dict(sources or {})
        self._templates = {name: _compiled(source, special_tokens or {}) for name, source in by_name.items()}

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Load a Jinja file, or those of a `tokenizer_config.json`. Raises OSError or ValueError."""
        if path.suffix != ".json":
            return cls(path.read_text("utf-8"), None)
        config = read_config(path)
        if (sources := templates_of(config, path)) is None:
            raise ValueError(f"{path} has no chat_template")
        return cls(sources, special_tokens_of(config))

    @property
    def names(self) -> list[str]:
        """Their names, sorted."""
        return sorted(self._templates)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,  # noqa: FBT001, FBT002 - the name and place that every tokenizer has
        **variables: Any,  # noqa: ANN401 - whatever the template takes
    ) -> str:
        """Render a chat, as `HfTokenizer.render` does."""
        template = self._templates.get("tool_use") if tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise ValueError("this tokenizer has no chat template: pass chat_template=")
        return template.render(messages, tools, {**variables, "add_generation_prompt": add_generation_prompt})


def _compiled(source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    need("cachelb.tokenizers", "jinja2")
    from cachelb.tokenizers.template import ChatTemplate

    return ChatTemplate(source, special_tokens)


def read_config(file: Path) -> dict[str, Any]:
    """Read a JSON object; a file that is not there is an empty one."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} must hold an object, got {type(found).__name__}")  # noqa: TRY004 - of a file
    return found


def templates_of(config: Mapping[str, Any], file: Path) -> str | dict[str, str] | None:
    """Read the `chat_template` of the configuration in `file`: one template, or a list of them with names."""
    value = config.get("chat_template")
    if value is None or isinstance(value, str):
        return value
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    except (TypeError, KeyError):
        raise ValueError(f"chat_template of {file} must be a text or a list of templates with names") from None


def special_tokens_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that have names, such as `eos_token`."""
    found = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found
