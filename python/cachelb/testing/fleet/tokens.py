"""A tokenizer that needs no vocabulary: one token per four bytes of UTF-8.

Texts that share their first ``4 * n`` bytes share their first ``n`` tokens, as prompts of a real tokenizer do.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BYTES_PER_TOKEN: Final = 4

# Four ASCII letters each, so that every word is one token and needs no escape in JSON.
_WORDS: Final = (
    " sun", " sea", " sky", " oak", " elm", " fox", " owl", " bee",
    " tin", " ore", " ash", " hay", " fig", " rye", " dew", " fog",
)  # fmt: skip
_WORD_TOKENS: Final = tuple(int.from_bytes(word.encode(), "little") for word in _WORDS)


def encode(text: str) -> npt.NDArray[np.uint32]:
    """Tokenize a text: one little-endian u32 per four bytes of UTF-8, the last one filled up with zero bytes.

    Example:
        >>> encode("abcdef").tolist() == [0x64636261, 0x6665]
        True
    """
    data = text.encode(errors="surrogatepass")
    return np.frombuffer(data + bytes(-len(data) % BYTES_PER_TOKEN), "<u4")


def decode(tokens: Iterable[int] | npt.NDArray[np.uint32]) -> str:
    """Return the text that `encode` was given, less zero characters at its end; invalid UTF-8 is replaced.

    Example:
        >>> decode(encode("abcdef"))
        'abcdef'
    """
    ids = tokens if isinstance(tokens, np.ndarray) else np.fromiter(tokens, "<u4")
    return ids.astype("<u4").tobytes().rstrip(b"\0").decode(errors="replace")


def render_chat(messages: Sequence[object], tools: object = None, *, add_generation_prompt: bool = True) -> str:
    """Render a conversation as a chat template does, so that a longer one begins with the shorter one.

    Messages are in the form of the OpenAI API; tools are rendered first. `add_generation_prompt` ends with the opening
    of the assistant's turn.

    Example:
        >>> render_chat([{"role": "user", "content": "hi"}])
        '<|user|>hi<|end|><|assistant|>'
    """
    parts = [json.dumps(tools, sort_keys=True)] if tools else []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError("every message must be an object with a role")  # noqa: TRY004 - becomes a 400
        parts += (f"<|{message['role']}|>", _content(message), "<|end|>")
    return "".join((*parts, "<|assistant|>" if add_generation_prompt else ""))


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        text = "".join(part["text"] if _is_text(part) else _digest(part) for part in content)
    elif content is None:
        text = ""
    else:
        raise ValueError("the content of a message must be a string or a list of parts")
    calls = message.get("tool_calls")
    return text + json.dumps(calls, sort_keys=True) if calls else text


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _digest(part: object) -> str:
    """Stand in for an image or a sound, of which engines see placeholders too."""
    return f"<|{hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]}|>"


def answer_words(prompt: npt.NDArray[np.uint32], count: int) -> tuple[list[str], list[int]]:
    """Make up an answer, the same for the same prompt: words of one token each, and their token ids."""
    state = zlib.crc32(prompt.data)
    words, ids = [], []
    for _ in range(count):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        words.append(_WORDS[state >> 27])
        ids.append(_WORD_TOKENS[state >> 27])
    return words, ids
