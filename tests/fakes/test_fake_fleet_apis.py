"""The fake engines serve the APIs that clients speak, and a conversation has one prefix through all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import anthropic
import openai
import pytest

from cachelb import RequestBodies, Router
from cachelb_fakes import FakeFleet, FakeWorker

SYSTEM = "You are a careful assistant who plans journeys and never guesses. " * 40
SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}, "city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "The forecast of a city.", "parameters": SCHEMA}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "chat": [{"type": "function", "function": FUNCTION}],
    "messages": [{"name": "weather", "input_schema": SCHEMA, "description": FUNCTION["description"]}],
    "responses": [{"type": "function", **FUNCTION}],
}
QUESTION = "Where shall I go for a week? " * 20
FOLLOW_UP = "And the week after that? " * 20
STOPS = {"chat": "tool_calls", "messages": "tool_use"}


class Clients(NamedTuple):
    """The official clients of one worker, whose types of requests are narrower than the APIs."""

    openai: Any
    anthropic: Any


class Turn(NamedTuple):
    """An answer as a client reads it."""

    text: str
    calls: list[tuple[str, str, dict[str, Any]]]
    stop: str | None
    prompt_tokens: int
    cached_tokens: int


@pytest.fixture(name="fleet")
def two_workers() -> Iterator[FakeFleet]:
    with FakeFleet(2, models=["base", "adapter"]) as fleet:
        yield fleet


def clients(worker: FakeWorker) -> Clients:
    return Clients(
        openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0),
        anthropic.Anthropic(base_url=worker.url, api_key="none", max_retries=0),
    )


@pytest.fixture(name="apis")
def first_worker(fleet: FakeFleet) -> Iterator[Clients]:
    apis = clients(fleet.workers[0])
    with apis.openai, apis.anthropic:
        yield apis


@pytest.fixture(name="refusing", scope="module")
def one_worker() -> Iterator[Clients]:
    with FakeFleet(1, models=["base"]) as fleet:
        apis = clients(fleet.workers[0])
        with apis.openai, apis.anthropic:
            yield apis


# --- one conversation in both forms ---


def ask_chat(apis: Clients, messages: list[Any], *, stream: bool, choice: str | None = None) -> Turn:
    fields: dict[str, Any] = {
        "model": "base",
        "messages": messages,
        "tools": TOOLS["chat"],
        "max_tokens": 24,
    }
    if choice is not None:
        fields["tool_choice"] = choice
    if stream:
        return _collect(
            apis.openai.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        )
    answer = apis.openai.chat.completions.create(**fields)
    (made_up,) = answer.choices
    made = [call.function for call in made_up.message.tool_calls or ()]
    ids = [call.id for call in made_up.message.tool_calls or ()]
    calls = [(number, call.name, json.loads(call.arguments)) for number, call in zip(ids, made, strict=True)]
    usage = answer.usage
    cached = usage.prompt_tokens_details.cached_tokens
    return Turn(made_up.message.content or "", calls, made_up.finish_reason, usage.prompt_tokens, cached)


def _collect(chunks: Any) -> Turn:
    """Put a stream together. The client's own helper refuses an answer that ends with its limit beside tools."""
    *events, last = chunks
    deltas = [event.choices[0].delta for event in events]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    arguments = "".join(call.function.arguments for call in calls)
    made = [(calls[0].id, calls[0].function.name, json.loads(arguments))] if calls else []
    text = "".join(delta.content or "" for delta in deltas)
    cached = last.usage.prompt_tokens_details.cached_tokens
    return Turn(text, made, events[-1].choices[0].finish_reason, last.usage.prompt_tokens, cached)


def ask_messages(apis: Clients, messages: list[Any], *, stream: bool, choice: str | None = None) -> Turn:
    fields: dict[str, Any] = {
        "model": "base",
        "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        "messages": messages,
        "tools": TOOLS["messages"],
        "max_tokens": 24,
    }
    if choice is not None:
        fields["tool_choice"] = {"type": {"required": "any"}.get(choice, choice)}
    if stream:
        with apis.anthropic.messages.stream(**fields) as events:
            answer: Any = events.get_final_message()
    else:
        answer = apis.anthropic.messages.create(**fields)
    calls = [(block.id, block.name, block.input) for block in answer.content if block.type == "tool_use"]
    text = "".join(block.text for block in answer.content if block.type == "text")
    cached = answer.usage.cache_read_input_tokens
    return Turn(text, calls, answer.stop_reason, answer.usage.input_tokens + cached, cached)


def chat_messages(call: tuple[str, str, dict[str, Any]] | None = None, said: str = "") -> list[Any]:
    """The conversation before the call, or with it and what follows it."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    if call is None:
        return messages
    number, name, arguments = call
    made = {"id": number, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments, indent=1)}}
    messages += [
        {"role": "assistant", "content": said, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": number, "content": "Sun, 24 degrees."},
        {"role": "user", "content": FOLLOW_UP},
    ]
    return messages


def anthropic_messages(call: tuple[str, str, dict[str, Any]] | None = None, said: str = "") -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    if call is None:
        return messages
    number, name, arguments = call
    result = {"type": "tool_result", "tool_use_id": number, "content": [{"type": "text", "text": "Sun, 24 degrees."}]}
    use = {"type": "tool_use", "id": number, "name": name, "input": arguments}
    messages += [
        {"role": "assistant", "content": [{"type": "text", "text": said}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": FOLLOW_UP}]},
    ]
    return messages


ASK: dict[str, Callable[..., Turn]] = {"chat": ask_chat, "messages": ask_messages}
WRITE: dict[str, Callable[..., list[Any]]] = {"chat": chat_messages, "messages": anthropic_messages}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("first", "second"), [("chat", "messages"), ("messages", "chat")])
def test_a_conversation_has_one_prefix_through_both_clients(
    fleet: FakeFleet, apis: Clients, first: str, second: str, *, stream: bool
) -> None:
    router = Router(["gpu0", "gpu1"], seed=1, bodies=RequestBodies(engine="vllm"))
    opening = ASK[first](apis, WRITE[first](), stream=stream, choice="required")
    (call,) = opening.calls
    assert (call[1], set(call[2]), opening.stop) == ("weather", {"days", "city"}, STOPS[first])
    said = "Let me look."
    turns = [opening]
    turns += [ASK[api](apis, WRITE[api](call, said), stream=stream) for api in (first, second)]
    prompts = [turn.prompt_tokens for turn in turns]
    assert prompts[0] < prompts[1] == prompts[2]
    assert turns[1].text == turns[2].text != ""
    # All full blocks but that of the last token, and before it those of the shorter conversation.
    assert turns[1].cached_tokens in range(prompts[0] - 32, prompts[0])
    assert turns[2].cached_tokens == (prompts[2] - 1) // 16 * 16
    decisions = []
    for seen in fleet.workers[0].requests:
        decision = router.select_worker(body=seen.data, path=seen.path, headers=seen.headers)
        decision.on_complete()
        decisions.append(decision)
    wholes = [0, *(decision.prompt_tokens for decision in decisions[:2])]
    for turn, decision, whole in zip(turns, decisions, wholes, strict=True):
        assert decision.matched_tokens in range(max(0, whole - 64), whole + 1)
        assert abs(decision.matched_tokens - turn.cached_tokens) <= 64


def test_equal_messages_behind_other_system_texts_share_nothing(fleet: FakeFleet, apis: Clients) -> None:
    router = Router(["gpu0"], seed=1, bodies=RequestBodies(engine="vllm"))
    turn: dict[str, Any] = {"role": "user", "content": QUESTION}
    counts = []
    for system in ("Answer in rhymes. " * 1_100, "Answer in prose. " * 1_200):
        fields: dict[str, Any] = {"model": "base", "system": system, "messages": [turn]}
        usage = apis.anthropic.messages.create(**fields, max_tokens=4).usage
        counts.append(usage.input_tokens)
        assert (usage.cache_read_input_tokens, usage.output_tokens) == (0, 4)
        assert apis.anthropic.messages.count_tokens(**fields).input_tokens == counts[-1] >= 4_500
    for seen in fleet.workers[0].requests:
        with router.select_worker(body=seen.data, path=seen.path, headers=seen.headers) as decision:
            assert decision.matched_tokens == 0
            assert decision.prompt_tokens >= 4_500


# --- responses ---


def ask_responses(apis: Clients, *, stream: bool, **fields: Any) -> Any:
    """Ask for a response, of a stream the last one, whose pieces add up to it."""
    if not stream:
        return apis.openai.responses.create(model="base", **fields)
    with apis.openai.responses.stream(model="base", **fields) as events:
        seen = list(events)
    (response,) = (event.response for event in seen if event.type == "response.completed")
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    pieces = [event.delta for event in seen if event.type.endswith(".delta")]
    (item,) = response.output
    assert "".join(pieces) == (item.arguments if item.type == "function_call" else item.content[0].text)
    assert len(pieces) == response.usage.output_tokens
    return response


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_response_is_continued_by_the_engine_that_made_it(fleet: FakeFleet, apis: Clients, *, stream: bool) -> None:
    first = ask_responses(apis, stream=stream, input=QUESTION, instructions=SYSTEM, max_output_tokens=24)
    then = {"input": FOLLOW_UP, "instructions": SYSTEM, "previous_response_id": first.id, "stream": stream}
    second = ask_responses(apis, **then)
    prompt = second.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens in range(first.usage.input_tokens - 32, prompt)
    # The conversation, written out, is the same prompt.
    messages = [*chat_messages(), {"role": "assistant", "content": first.output_text}]
    messages.append({"role": "user", "content": FOLLOW_UP})
    whole: Any = apis.openai.chat.completions.create(model="base", messages=messages)
    assert (whole.usage.prompt_tokens, whole.usage.prompt_tokens_details.cached_tokens) == (
        prompt,
        (prompt - 1) // 16 * 16,
    )
    assert whole.choices[0].message.content == second.output_text

    other = clients(fleet.workers[1])
    for gone in (other, apis):
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{first.id}' not found") as refused:
            gone.openai.responses.create(**then | {"stream": False}, model="base")
        error = refused.value
        assert [error.type, error.param, error.code] == ["invalid_request_error", "response_id", 404]
        fleet.workers[0].stop()  # the store is lost with its process
        fleet.workers[0].start(restart=True)


@pytest.mark.parametrize("asked", [{}, {"encoding_format": "float"}], ids=["base64", "float"])
def test_embeddings_are_equal_for_equal_inputs_and_have_the_length_asked_for(
    apis: Clients, asked: dict[str, str]
) -> None:
    made = apis.openai.embeddings.create(model="base", input=["a sun", "a sea", "a sun"], dimensions=8, **asked)
    first, other, again = (entry.embedding for entry in made.data)
    assert [entry.index for entry in made.data] == [0, 1, 2]
    assert first == again != other
    assert len(first) == len(other) == 8
    assert sum(value * value for value in first) == pytest.approx(1, abs=1e-5)
    assert made.usage.prompt_tokens == made.usage.total_tokens == 6
    ids = apis.openai.embeddings.create(model="base", input=[1, 2, 3], dimensions=8)
    assert ids.usage.prompt_tokens == 3
    assert (
        ids.data[0].embedding
        == apis.openai.embeddings.create(model="base", input=[[1, 2, 3]], dimensions=8).data[0].embedding
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"input": []}, "input must have at least one text"),
        ({"input": ["a", 1]}, "input must be a string or a list"),
        ({"input": {}}, "input must be a string or a list"),
        ({"input": "a", "dimensions": 0}, "dimensions must be from 1 to 4096"),
        ({"input": "a", "dimensions": 4097}, "dimensions must be from 1 to 4096"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format must be float or base64"),
        ({"input": "a", "stream": True}, "embeddings are not streamed"),
    ],
)
def test_embeddings_that_cannot_be_made_are_refused(apis: Clients, given: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        apis.openai.post("/embeddings", body={"model": "base", **given}, cast_to=object)


def test_a_response_that_is_not_stored_cannot_be_continued(apis: Clients) -> None:
    response = apis.openai.responses.create(model="base", input="Hello!", store=False)
    with pytest.raises(openai.NotFoundError):
        apis.openai.responses.create(model="base", input="Again!", previous_response_id=response.id)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_items_of_a_response_are_the_messages_of_a_chat(apis: Clients, *, stream: bool) -> None:
    tools: dict[str, Any] = {"tools": TOOLS["responses"], "max_output_tokens": 24}
    opening = ask_responses(apis, stream=stream, input=QUESTION, instructions=SYSTEM, tool_choice="required", **tools)
    (item,) = opening.output
    assert (item.type, item.name, opening.status) == ("function_call", "weather", "completed")
    call = (item.call_id, item.name, json.loads(item.arguments))
    asked = ask_chat(apis, chat_messages(call, "Let me look."), stream=False)
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"type": "message", "role": "assistant", "content": "Let me look."},
        {"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": item.arguments},
        {"type": "function_call_output", "call_id": item.call_id, "output": "Sun, 24 degrees."},
        {"role": "user", "content": FOLLOW_UP},
    ]
    response = ask_responses(apis, stream=stream, input=items, instructions=SYSTEM, **tools)
    assert response.usage.input_tokens == asked.prompt_tokens
    assert response.usage.input_tokens_details.cached_tokens == (asked.prompt_tokens - 1) // 16 * 16
    assert response.output_text == asked.text


# --- loops of agents ---


def loop_responses(apis: Clients, *, stream: bool, choice: str | None, question: str, earlier: list[Any]) -> list[str]:
    """Run the calls of answers until one has none; returns the kinds of the answers."""
    fields: dict[str, Any] = {"tools": TOOLS["responses"], "max_output_tokens": 24}
    if choice is not None:
        fields["tool_choice"] = choice
    earlier.append({"role": "user", "content": question})
    kinds: list[str] = []
    while kinds[-1:] != ["message"] and len(kinds) < 3:
        (item,) = ask_responses(apis, stream=stream, input=earlier, **fields).output
        kinds.append(item.type)
        earlier.append(item.model_dump(include={"type", "role", "content", "call_id", "name", "arguments"}))
        if item.type == "function_call":
            assert json.loads(item.arguments).keys() == {"days", "city"}
            earlier.append({"type": "function_call_output", "call_id": item.call_id, "output": "Sun."})
    return kinds


def loop_of(api: str) -> Callable[..., list[str]]:
    def loop(apis: Clients, *, stream: bool, choice: str | None, question: str, earlier: list[Any]) -> list[str]:
        earlier.append({"role": "user", "content": question})
        kinds: list[str] = []
        while kinds[-1:] != ["message"] and len(kinds) < 3:
            turn = ASK[api](apis, earlier, stream=stream, choice=choice)
            kinds.append("function_call" if turn.calls else "message")
            if turn.calls:
                assert turn.stop == STOPS[api]
                call = turn.calls[0]
                earlier += WRITE[api](call, "Let me look.")[-3 if api == "chat" else -2 :][:2]
            else:
                earlier.append({"role": "assistant", "content": turn.text})
        return kinds

    return loop


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "loop", [loop_of("chat"), loop_of("messages"), loop_responses], ids=["chat", "messages", "responses"]
)
def test_an_agent_gets_one_call_for_each_question(
    apis: Clients, loop: Callable[..., list[str]], *, stream: bool
) -> None:
    earlier: list[Any] = []
    for choice in (None, "auto"):
        kinds = loop(apis, stream=stream, choice=choice, question="Where is sun?", earlier=earlier)
        assert kinds == ["function_call", "message"]
    assert loop(apis, stream=stream, choice="none", question="Thanks!", earlier=earlier) == ["message"]
    assert loop(apis, stream=stream, choice="required", question="Again!", earlier=earlier) == ["function_call"] * 3


# --- refusals ---

USER: dict[str, Any] = {"role": "user", "content": "Hello!"}
CHAT: dict[str, Any] = {"model": "base", "messages": [USER]}
MESSAGES: dict[str, Any] = {"model": "base", "messages": [USER], "max_tokens": 4}
RESPONSES: dict[str, Any] = {"model": "base", "input": "Hello!"}
BAD = "Bad Request"
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "other"}}


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/chat/completions", CHAT | {"model": 1}, 400, BAD),
        ("/chat/completions", CHAT | {"model": "other"}, 404, "NotFoundError"),
        ("/chat/completions", CHAT | {"messages": None}, 400, BAD),
        ("/chat/completions", CHAT | {"messages": [{"content": "a"}]}, 400, BAD),
        ("/chat/completions", CHAT | {"messages": [USER | {"content": 1}]}, 400, BAD),
        ("/chat/completions", CHAT | {"messages": [USER | {"tool_calls": [{"id": "a"}]}]}, 400, BAD),
        ("/chat/completions", CHAT | {"tools": []}, 400, BAD),
        ("/chat/completions", CHAT | {"tools": [{"type": "function"}]}, 400, BAD),
        ("/chat/completions", CHAT | {"tool_choice": "required"}, 400, BAD),
        ("/chat/completions", CHAT | {"tools": TOOLS["chat"], "tool_choice": "never"}, 400, BAD),
        ("/chat/completions", CHAT | {"tools": TOOLS["chat"], "tool_choice": NAMED}, 400, BAD),
        ("/chat/completions", CHAT | {"max_tokens": 10**6}, 400, "BadRequestError"),
        ("/v1/messages", MESSAGES | {"model": None}, 400, BAD),
        ("/v1/messages", MESSAGES | {"model": "other"}, 404, "NotFoundError"),
        ("/v1/messages", MESSAGES | {"max_tokens": None}, 400, BAD),
        ("/v1/messages", MESSAGES | {"max_tokens": 0}, 400, BAD),
        ("/v1/messages", MESSAGES | {"max_tokens": 10**6}, 400, "BadRequestError"),
        ("/v1/messages", MESSAGES | {"messages": None}, 400, BAD),
        ("/v1/messages", MESSAGES | {"messages": []}, 400, "BadRequestError"),
        ("/v1/messages", MESSAGES | {"messages": ["Hello!"]}, 400, BAD),
        ("/v1/messages", MESSAGES | {"messages": [{"role": "user"}]}, 400, BAD),
        ("/v1/messages", MESSAGES | {"messages": [USER | {"role": "tool"}]}, 400, BAD),
        ("/v1/messages", MESSAGES | {"messages": [USER | {"content": [{"type": "video"}]}]}, 400, BAD),
        ("/v1/messages", MESSAGES | {"messages": [USER | {"content": [{"type": "tool_use", "input": "a"}]}]}, 400, BAD),
        ("/v1/messages", MESSAGES | {"system": 1}, 400, BAD),
        ("/v1/messages", MESSAGES | {"tools": [{"name": "weather"}]}, 400, BAD),
        ("/v1/messages", MESSAGES | {"tools": TOOLS["messages"], "tool_choice": {"type": "tool"}}, 400, BAD),
        (
            "/v1/messages",
            MESSAGES | {"tools": TOOLS["messages"], "tool_choice": {"type": "tool", "name": "other"}},
            400,
            "BadRequestError",
        ),
        ("/v1/messages/count_tokens", MESSAGES | {"messages": None}, 400, BAD),
        ("/v1/messages/count_tokens", MESSAGES | {"messages": []}, 400, "BadRequestError"),
        ("/responses", RESPONSES | {"model": "other"}, 404, "NotFoundError"),
        ("/responses", RESPONSES | {"input": None}, 400, BAD),
        ("/responses", RESPONSES | {"input": 1}, 400, BAD),
        ("/responses", RESPONSES | {"input": [{"role": "tool", "content": "a"}]}, 400, BAD),
        ("/responses", RESPONSES | {"input": [{"type": "function_call", "name": "weather"}]}, 400, BAD),
        (
            "/responses",
            RESPONSES | {"input": [{"type": "reasoning", "encrypted_content": "a"}]},
            400,
            "BadRequestError",
        ),
        ("/responses", RESPONSES | {"instructions": ["a"]}, 400, BAD),
        ("/responses", RESPONSES | {"prompt": {"id": "a"}}, 400, BAD),
        ("/responses", RESPONSES | {"tool_choice": "required"}, 400, BAD),
        ("/responses", RESPONSES | {"tools": TOOLS["responses"], "tool_choice": NAMED}, 400, BAD),
        ("/responses", RESPONSES | {"previous_response_id": "resp_other"}, 404, "invalid_request_error"),
        ("/responses", RESPONSES | {"max_output_tokens": 10**6}, 400, "BadRequestError"),
    ],
)
def test_a_body_that_vllm_refuses_is_the_error_of_the_client(
    refusing: Clients, path: str, body: dict[str, Any], status: int, kind: str
) -> None:
    client: Any = refusing.anthropic if "messages" in path else refusing.openai
    package: Any = anthropic if "messages" in path else openai
    with pytest.raises(package.APIStatusError) as refused:
        client.post(path, body=body, cast_to=object)
    error = refused.value
    assert type(error) is {400: package.BadRequestError, 404: package.NotFoundError}[status]
    assert error.response.json()["error"]["type"] == kind
    # vLLM refuses in Anthropic's form only what its own code refuses.
    assert error.response.json().get("type") == ("error" if "messages" in path and kind != BAD else None)
