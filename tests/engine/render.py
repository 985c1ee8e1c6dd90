"""vLLM's own rendering of request bodies, without a model: `vllm launch render`."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.engine.engine import MODEL_NAME, REQUEST_DEADLINE_S, Engine
from tests.http_client import JSON, connect
from tokenizers import Tokenizer

from cachelb import RequestBodies
from cachelb._core import read_body

# Fields that keep prompts apart beside their canonical bytes.
NAMESPACE = ("kind", "model", "adapter", "salt", "other_media")
NUMBER = re.compile(rb"#(\d+);")


def template_of(families: Mapping[str, str], otherwise: str) -> str:
    """Return one chat template that renders as the family that `chat_template_kwargs` names, else as `otherwise`."""
    chosen = ""
    for name, source in families.items():
        chosen += "{% " + f"{'elif' if chosen else 'if'} family == '{name}'" + " %}" + source
    return chosen + "{% else %}" + otherwise + "{% endif %}{% if add_generation_prompt %}<|im_start|>{% endif %}"


class RenderServer(Engine):
    """vLLM's front end on loopback. It is started and stopped as an engine.

    Args:
        model: Folder that `write_model` made.
        log: File that takes what the server writes.
        template: Its chat template.
    """

    def __init__(self, model: Path, log: Path, template: str) -> None:
        self._template = log.with_suffix(".jinja")
        self._template.write_text(template, "utf-8")
        super().__init__(model, log, name=log.stem)
        self._connection = connect(self.url, REQUEST_DEADLINE_S)
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def _make_arguments(self, model: Path, adapters: Sequence[str], flags: Sequence[str]) -> list[str]:
        arguments = [str(self._python.with_name("vllm")), "launch", "render", str(model)]
        arguments += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(self.port)]
        arguments += ["--chat-template", str(self._template), "--max-model-len", "16384"]
        # Without a parser vLLM refuses tools.
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--disable-uvicorn-access-log"]
        return [*arguments, *flags]

    def render(self, path: str, body: bytes) -> list[list[int]] | None:
        """Return the token ids of each prompt of a body, or None if vLLM refuses the body."""
        try:
            status, answer = self._send(path, body)
        except (HTTPException, ConnectionError):
            # The server closes connections that nothing comes through for a while.
            self._connection.close()
            status, answer = self._send(path, body)
        if status in (400, 500):  # it fails at an answer without parts
            return None
        if status != 200:
            raise self._failure(f"answered {status}: {answer}")
        found = answer if isinstance(answer, list) else [answer]
        return [each["token_ids"] for each in found]

    def _send(self, path: str, body: bytes) -> tuple[int, Any]:
        self._connection.request("POST", f"{path}/render", body, JSON)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def _end(self, first: signal.Signals) -> None:
        self._connection.close()
        super()._end(first)

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of token ids."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


@dataclass(frozen=True, slots=True)
class Read:
    """A body as a router reads it."""

    prompt: bytes
    namespace: tuple[object, ...]

    @classmethod
    def of(cls, bodies: RequestBodies, path: str, body: bytes) -> Read:
        """Read a body as a router with `bodies` does."""
        read: dict[str, Any] = read_body(asdict(bodies), body, path, {})
        return cls(read["prompt"], tuple(read[name] for name in NAMESPACE))

    def shared_with(self, other: Read) -> bytes:
        """Return what both begin with; nothing if they never match."""
        if self.namespace != other.namespace:
            return b""
        return self.prompt[: common(self.prompt, other.prompt)]


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Count what both begin with."""
    least = min(len(one), len(other))
    return next((i for i in range(least) if one[i] != other[i]), least)


def numbers(text: bytes) -> Counter[bytes]:
    """Count the numbers of the texts in it; each text of a conversation begins with one of its own."""
    return Counter(NUMBER.findall(text))


def falsely_shared(shared: bytes, texts: tuple[str, str]) -> set[bytes]:
    """Return the numbers of texts that are shared, though they are rendered behind the first difference of `texts`."""
    one, other = texts
    rendered = numbers(one[: common(one, other)].encode())
    shown = numbers(one.encode()) | numbers(other.encode())
    return {number for number, count in numbers(shared).items() if min(count, shown[number]) > rendered[number]}
