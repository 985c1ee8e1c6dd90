"""The interface of a tokenizer to a gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """Turns prompts into token ids. `HfTokenizer` is one; any object with these methods will do.

    The ids must be those that the engine computes from the same request, or no block of the prompt is ever found:
    `cachelb doctor --tokenizer` compares them.

    Example:
        >>> from cachelb.tokenizers import Tokenizer
        >>> class Bytes:
        ...     def encode(self, text):
        ...         return list(text.encode())
        ...
        ...     def apply_chat_template(self, messages, tools=None, add_generation_prompt=True):
        ...         return self.encode("".join(message["content"] for message in messages))
        >>> isinstance(Bytes(), Tokenizer)
        True
    """

    def encode(self, text: str) -> Sequence[int]:
        """Tokenize the prompt of a completion.

        Args:
            text: The prompt.

        Returns:
            Its token ids, with those that the model's tokenizer puts before and behind any text.
        """
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,  # noqa: FBT001, FBT002 - the name and place that every tokenizer has
    ) -> Sequence[int]:
        """Render a chat and tokenize it.

        Args:
            messages: Messages in the form of the OpenAI API.
            tools: Tools likewise.
            add_generation_prompt: End with the opening of the assistant's turn.

        Returns:
            The token ids.
        """
        ...
