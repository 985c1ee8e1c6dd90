"""An engine as far as prompts go: bodies become chats as vLLM makes them, and templates render these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benches.templates.words import Body

from cachelb.tokenizers.templates import ChatTemplates

_HEADER = "x-anthropic-billing-header"
_PROBE = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]


_TOOL = {
    "type": "function",
    "function": {"name": "t", "description": "t", "parameters": {"type": "object", "properties": {}}},
}
_SPECIAL = {f"{name}_token": f"<|{name}|>" for name in ("bos", "eos", "pad", "unk")}


class RefusedError(Exception):
    """A template that does not take a chat."""


class Engine:
    """Renders bodies with one chat template.

    Args:
        file: The template.
        names: Whether requests name the model as the template's file is called; otherwise it is "m".
        gathers: Whether developer messages move to the front if the template has no such role, as from vLLM 0.33;
            otherwise they become system messages where they are, and move only if the template refuses them there.
        keeps_line: Whether the billing line stays, as with some versions of SGLang.
    """

    def __init__(self, file: Path, *, names: bool = True, gathers: bool = False, keeps_line: bool = False) -> None:
        self.name = file.stem
        self.model = file.stem if names else "m"
        source = file.read_text("utf-8")
        self.templates = ChatTemplates(source, _SPECIAL)
        self._has_developer = "'developer'" in source or '"developer"' in source
        self._gathers = gathers
        self._header = "\0" if keeps_line else _HEADER
        # vLLM leaves tools undefined, which a template that takes a chat with tools only does not refuse.
        self._merges = self._render(_PROBE, None) is None and self._render(_PROBE, [_TOOL]) is None

    def render(self, path: str, body: Body) -> bytes:
        """Return the prompt. Raises RefusedError."""
        tools = body.get("tools")
        if path.endswith("/messages"):
            messages = self._from_anthropic(body)
            tools = [_chat_tool(tool, "input_schema") for tool in tools or ()]
        elif path.endswith("/responses"):
            messages = _from_responses(body)
            tools = [_chat_tool(tool, "parameters") for tool in tools or ()]
        else:
            messages = [self._from_chat(message) for message in body["messages"]]
        if not self._has_developer and any(message["role"] == "developer" for message in messages):
            messages = [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]
            if self._gathers:
                messages = _gathered(messages)
        rendered = self._render(messages, tools or None)
        if rendered is None:
            rendered = self._render(_gathered(messages), tools or None)
        if rendered is None:
            raise RefusedError(self.name)
        return rendered.encode()

    def _from_chat(self, message: Body) -> Body:
        """Cut the header, and give reasoning both of its names."""
        found = dict(message)
        thought = found.pop("reasoning_content", found.pop("reasoning", None))
        if thought is not None and found["role"] == "assistant":
            found |= {"reasoning": thought, "reasoning_content": thought}
        if found["role"] == "system":
            texts = [part["text"] for part in _listed(found["content"])] or [found["content"]]
            found["content"] = "\n".join(text for each in texts if (text := self._cut(each)))
        if found["role"] in ("tool", "assistant"):
            found["content"] = _joined(found["content"], "\n")
        return found

    def _cut(self, text: str) -> str:
        """Cut the line of a client's attribution."""
        return text.partition("\n")[2] if text.startswith(self._header) else text

    def _system_text(self, content: object) -> str:
        texts = [content] if isinstance(content, str) else [part["text"] for part in _listed(content)]
        return "".join(map(self._cut, texts))

    def _from_anthropic(self, body: Body) -> list[Body]:
        """Cut the header, put results before the text of their message, thoughts first and calls last."""
        system = self._system_text(body.get("system"))
        messages: list[Body] = []
        for turn in body["messages"]:
            role, content = turn["role"], turn["content"]
            if role == "system":
                text = self._system_text(content)
                if self._merges:
                    system += text
                elif text:
                    messages.append({"role": "system", "content": text})
                continue
            if isinstance(content, str):
                messages.append({"role": role, "content": content})
                continue
            own: Body = {"role": role}
            texts = [block["text"] for block in content if block["type"] == "text"]
            thoughts = [block["thinking"] for block in content if block["type"] == "thinking"]
            calls = [block for block in content if block["type"] == "tool_use"]
            messages += [
                {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _joined(block["content"], "\n")}
                for block in content
                if block["type"] == "tool_result"
            ]
            if thoughts:
                own["reasoning"] = own["reasoning_content"] = "".join(thoughts)
            if calls:
                own["tool_calls"] = [_call(block["id"], block["name"], json.dumps(block["input"])) for block in calls]
            own["content"] = "\n".join(texts)
            if role == "assistant" or texts:
                messages.append(own)
        return [{"role": "system", "content": system}, *messages] if system else messages

    def _render(self, messages: list[Body], tools: list[Body] | None) -> str | None:
        try:
            return self.templates.render(messages, tools)
        except ValueError:
            return None


def _gathered(messages: list[Body]) -> list[Body]:
    """Move the text of all system messages to the front."""
    texts = [text for m in messages if m["role"] == "system" and (text := _joined(m["content"], "\n"))]
    rest = [m for m in messages if m["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def _joined(content: object, between: str) -> str:
    if isinstance(content, str):
        return content
    return between.join(part["text"] for part in content) if isinstance(content, list) else ""


def _chat_tool(tool: Body, schema: str) -> Body:
    function = {"name": tool["name"], "description": tool["description"], "parameters": tool[schema]}
    return {"type": "function", "function": function}


def _listed(content: object) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else []


def _call(call_id: str, name: str, arguments: str) -> Body:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _from_responses(body: Body) -> list[Body]:
    """Join the items of one answer."""
    messages: list[Body] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for item in body["input"]:
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        match item["type"]:
            case "reasoning":
                thought = item["content"][0]["text"]
                if last is None or "reasoning" in last:
                    messages.append(last := {"role": "assistant", "content": None})
                last["reasoning"] = last["reasoning_content"] = thought
            case "function_call":
                if last is None:
                    messages.append(last := {"role": "assistant", "content": None})
                last.setdefault("tool_calls", []).append(_call(item["call_id"], item["name"], item["arguments"]))
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
            case _ if item["role"] == "assistant":
                text = _joined(item["content"], "\n")
                if last is not None and last.get("content") is None:
                    last["content"] = text
                else:
                    messages.append({"role": "assistant", "content": text})
            case _:
                messages.append({"role": item["role"], "content": _joined(item["content"], "\n")})
    return [message | {"content": message.get("content") or ""} for message in messages]
