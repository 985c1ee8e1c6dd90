"""Chat templates: Jinja as the `tokenizer_config.json` of a model has it, rendered as engines render it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.parser import Parser


class ChatTemplate:
    """One compiled template; `variables` such as `bos_token` are available beside the messages."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
            self._takes_parts = _loops_over_content(environment.parse(source))
        except TemplateError as error:
            raise ValueError(f"the chat template is no valid Jinja: {error}") from error
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Render a chat; messages and tools are in the form of the OpenAI API.

        With the variable `add_generation_prompt` it ends with the opening of the assistant's turn.
        """
        given = {
            "documents": None,
            **self._variables,
            **variables,
            "messages": [_prepared(message, as_parts=self._takes_parts) for message in messages],
            "tools": list(tools) if tools else None,
        }
        try:
            return self._template.render(given)
        except Exception as error:  # noqa: BLE001 - a template is a program that fails in its own ways
            # A template's error may quote the chat, so only the kind of the error is passed on.
            raise ValueError(f"the chat template does not take this chat: {type(error).__name__}") from None


def _prepared(message: Mapping[str, Any], *, as_parts: bool) -> dict[str, Any]:
    """Return a message as vLLM hands it to a template: texts joined unless the template takes parts, arguments parsed.

    Only present fields are set: templates test for presence.
    """
    if not hasattr(message, "keys"):
        raise TypeError(f"a message must be an object with a role, got {type(message).__name__}")
    prepared = dict(message)
    content = message.get("content")
    if not isinstance(content, str) or as_parts:
        texts = [content] if isinstance(content, str) else [_text(part) for part in content or ()]
        prepared["content"] = [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
    if message.get("tool_calls"):
        prepared["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return prepared


def _text(part: object) -> str:
    """Return the text of a part; only the engine knows the number of tokens of an image."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise ValueError(  # noqa: TRY004 - a chat that cannot be tokenized here, whatever its type
            f"only the engine can tokenize a part of type {kind!r}: select by messages= for this request"
        )
    return text


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call whose arguments are an object, as templates expect them."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        raise ValueError("the arguments of a tool call are no JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _loops_over_content(tree: nodes.Template) -> bool:
    """Return whether a template iterates over the parts of a message, or takes its content as a text."""
    names = {
        node.target.name
        for node in tree.find_all(nodes.Assign)
        if isinstance(node.target, nodes.Name) and _is_content(node.node)
    }
    return any(
        _is_content(loop.iter) or (isinstance(loop.iter, nodes.Name) and loop.iter.name in names)
        for loop in tree.find_all(nodes.For)
    )


def _is_content(node: nodes.Node) -> bool:
    """Whether an expression is the content of a message, perhaps through filters."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


class _Generation(Extension):
    """The tag ``{% generation %}`` around the assistant's text, which only training needs."""

    tags = {"generation"}  # noqa: RUF012 - the base class has it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:  # noqa: ANN401 - the options of json.dumps
    """Write JSON without the escapes for HTML that Jinja's own filter makes."""
    return json.dumps(value, ensure_ascii=options.pop("ensure_ascii", False), indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - engines render their local time
