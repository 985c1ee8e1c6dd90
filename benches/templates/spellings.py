"""A chat as a body of other APIs, as clients that speak them would send it."""

from __future__ import annotations

import json

from benches.templates.words import Body, parts


def as_chat(talk: Body) -> Body:
    """Return it as it is."""
    return talk


def as_messages(talk: Body) -> Body:
    """Make a body of Anthropic's messages: results and the question behind them are one message."""
    messages = [dict(each) for each in talk["messages"]]
    system = []
    while messages and messages[0]["role"] == "system":
        system += parts(messages.pop(0)["content"])
    turns: list[Body] = []
    for each in messages:
        content = each["content"]
        blocks = parts(content) if isinstance(content, str) else list(content or ())
        match each["role"]:
            case "tool":
                blocks = [{"type": "tool_result", "tool_use_id": each["tool_call_id"], "content": content}]
                if turns and turns[-1]["role"] == "user" and turns[-1]["content"][-1]["type"] == "tool_result":
                    turns[-1]["content"] += blocks
                    continue
                turns.append({"role": "user", "content": blocks})
            case "user" if turns and turns[-1]["role"] == "user":
                turns[-1]["content"] += blocks
            case "assistant":
                if "reasoning_content" in each:
                    blocks.insert(0, {"type": "thinking", "thinking": each["reasoning_content"], "signature": "s"})
                for call in each.get("tool_calls", ()):
                    function = call["function"]
                    given = json.loads(function["arguments"])
                    blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
                turns.append({"role": "assistant", "content": blocks})
            case "developer":
                turns.append({"role": "system", "content": content})
            case role:
                turns.append({"role": role, "content": blocks if role == "user" else content})
    tools = [_renamed(tool, "input_schema") for tool in talk["tools"]]
    return {"max_tokens": 1000, "system": system, "messages": turns, "tools": tools}


def as_responses(talk: Body) -> Body:
    """Make a body of the responses API: the first system message are the instructions."""
    messages = list(talk["messages"])
    body: Body = {"tools": [{"type": "function", **_renamed(tool, "parameters")} for tool in talk["tools"]]}
    if messages and messages[0]["role"] == "system":
        body["instructions"] = messages.pop(0)["content"]
    items: list[Body] = []
    for each in messages:
        role, content = each["role"], each["content"]
        if role == "tool":
            items.append({"type": "function_call_output", "call_id": each["tool_call_id"], "output": content})
            continue
        if "reasoning_content" in each:
            thought = {"type": "reasoning_text", "text": each["reasoning_content"]}
            items.append({"type": "reasoning", "id": "r", "summary": [], "content": [thought]})
        kind = "output_text" if role == "assistant" else "input_text"
        texts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
        if texts:
            items.append({"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]})
        items += [{"type": "function_call", "call_id": c["id"], **c["function"]} for c in each.get("tool_calls", ())]
    return body | {"input": items}


def _renamed(tool: Body, schema: str) -> Body:
    function = tool["function"]
    return {"name": function["name"], "description": function["description"], schema: function["parameters"]}


SPELLINGS = {
    "/v1/chat/completions": as_chat,
    "/v1/messages": as_messages,
    "/v1/responses": as_responses,
}
"""Bodies of a chat by path."""
