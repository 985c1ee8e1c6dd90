"""The tokenizers of Hugging Face, with their chat templates and a cache of the parts of chats."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from cachelb.common.arguments import require
from cachelb.common.extras import need
from cachelb.tokenizers.segments import Added, Cutter, SegmentCache, cutting_tokens
from cachelb.tokenizers.templates import ChatTemplates, read_config, special_tokens_of, templates_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import tokenizers

_TOKENIZER: Final = "tokenizer.json"
_CONFIG: Final = "tokenizer_config.json"
_SPECIAL: Final = "special_tokens_map.json"
_TEMPLATE: Final = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Statistics of a tokenizer's cache.

    Attributes:
        hits: Parts of texts whose ids were there.
        misses: Parts that were tokenized.
        parts: Parts it holds.
        tokens: Their size, in token ids.

    Example:
        >>> from cachelb.tokenizers import CacheStats
        >>> stats = CacheStats(hits=3, misses=1, parts=4, tokens=512)
        >>> stats.hits / (stats.hits + stats.misses)
        0.75
    """

    hits: int
    misses: int
    parts: int
    tokens: int


class HfTokenizer:
    """A `tokenizer.json` of Hugging Face, with a chat template.

    Chats grow by a message at a time, so the ids of messages seen before are kept: a text is cut in front of special
    tokens, where its parts can be tokenized on their own, and only parts that are new are. The result is that of the
    whole text, always; a tokenizer whose tokens do not allow it is used without the cache.

    Tokenizing takes a hundred times as long as selecting: about a millisecond per 300 new tokens. An asyncio gateway
    calls it in a thread (`asyncio.to_thread`) where prompts are long. Any number of threads may; the work is done
    without the interpreter's lock. Needs the extra `tokenizers`.

    Example:
        >>> import tempfile, pathlib
        >>> from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
        >>> words = Tokenizer(models.WordLevel({"hello": 0, "you": 1}, unk_token="you"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> _ = words.add_special_tokens(["<user>", "<assistant>"])
        >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "tokenizer.json")
        ...     words.save(str(file))
        ...     tokenizer = HfTokenizer.from_file(file, chat_template=template)
        >>> tokenizer.apply_chat_template([{"role": "user", "content": "hello you"}]).tolist()
        [2, 0, 1, 3]
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        chat_template: str | Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        cache_tokens: int = 1_000_000,
    ) -> None:
        """Take a tokenizer of the package `tokenizers`; `from_file` and `from_directory` load one.

        Args:
            tokenizer: The tokenizer, which is not to be changed afterwards. Its truncation and padding are switched
                off, as no engine truncates or pads a prompt.
            chat_template: A template in Jinja, or several by name, of which "tool_use" is for chats with tools and
                "default" for the rest.
            special_tokens: Tokens that the template may name, such as `bos_token`.
            cache_tokens: Token ids the cache holds, at four bytes each; 0 is no cache.

        Raises:
            ModuleNotFoundError: `chat_template` is given and Jinja is not installed.
            TypeError: `cache_tokens` is not an integer.
            ValueError: The template is invalid, or `cache_tokens` is negative.
        """
        require("cache_tokens", cache_tokens, int, "a whole number")
        if cache_tokens < 0:
            raise ValueError(f"cache_tokens must be 0 or more, got {cache_tokens}")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._templates = ChatTemplates(chat_template, special_tokens)
        self._cutter = Cutter(
            cutting_tokens(_added(tokenizer)) if cache_tokens and _is_deterministic(tokenizer) else ()
        )
        self._cache = SegmentCache(cache_tokens, self._encode_all)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        chat_template: str | Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        cache_tokens: int = 1_000_000,
    ) -> Self:
        """Load a tokenizer.

        Args:
            path: A `tokenizer.json`.
            chat_template: As the constructor takes it.
            special_tokens: Likewise.
            cache_tokens: Likewise.

        Returns:
            The tokenizer.

        Raises:
            ModuleNotFoundError: The extra is not installed.
            FileNotFoundError: There is no such file.
            ValueError: It holds no tokenizer, or the template is invalid.
        """
        need("cachelb.tokenizers", "tokenizers")
        from tokenizers import Tokenizer

        text = Path(path).read_text("utf-8")
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the package raises plain ones
            raise ValueError(f"{path} holds no tokenizer: {error}") from error
        return cls(tokenizer, chat_template=chat_template, special_tokens=special_tokens, cache_tokens=cache_tokens)

    @classmethod
    def from_directory(
        cls, path: str | Path, *, chat_template: str | Mapping[str, str] | None = None, cache_tokens: int = 1_000_000
    ) -> Self:
        """Load the tokenizer and the chat template of a model's directory.

        Args:
            path: A directory with `tokenizer.json` and `tokenizer_config.json`, perhaps `chat_template.jinja`.
            chat_template: A template to use instead, as for an engine started with `--chat-template`.
            cache_tokens: As the constructor takes it.

        Returns:
            The tokenizer; without a template it does not take chats.

        Raises:
            ModuleNotFoundError: The extra is not installed.
            FileNotFoundError: There is no `tokenizer.json`.
            ValueError: A file has unexpected content.
        """
        folder = Path(path)
        config = {**read_config(folder / _SPECIAL), **read_config(folder / _CONFIG)}
        template: str | Mapping[str, str] | None = chat_template
        if template is None and (folder / _TEMPLATE).exists():
            template = (folder / _TEMPLATE).read_text("utf-8")
        if template is None:
            template = templates_of(config, folder / _CONFIG)
        return cls.from_file(
            folder / _TOKENIZER,
            chat_template=template,
            special_tokens=special_tokens_of(config),
            cache_tokens=cache_tokens,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> array[int]:
        """Tokenize a text.

        Args:
            text: The prompt of a completion.
            add_special_tokens: Put the tokens around it that the tokenizer puts around any text, as engines do.

        Returns:
            The ids, as an array of 32-bit integers, which `select_worker(tokens=...)` reads without a copy.

        Raises:
            TypeError: It is not a string.
            ValueError: It has surrogates, which have no UTF-8.
        """
        if add_special_tokens:
            return array("I", self._encode_one(_checked(text)))
        return self._cache.ids(self._cutter.cut(_checked(text)))

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,  # noqa: FBT001, FBT002 - the name and place that every tokenizer has
        **variables: Any,  # noqa: ANN401 - whatever the template takes
    ) -> array[int]:
        """Render a chat and tokenize it; of a chat that continues, only the new part.

        Args:
            messages: Messages in the form of the OpenAI API.
            tools: Tools likewise.
            add_generation_prompt: End with the opening of the assistant's turn.
            variables: Further variables of the template: the request's `chat_template_kwargs`.

        Returns:
            The ids, as `encode` returns them.

        Raises:
            TypeError: A message is not an object.
            ValueError: There is no template, it refuses the chat, or a message has an image or another part whose
                tokens only the engine knows.
        """
        text = self.render(messages, tools, add_generation_prompt, **variables)
        return self.encode(text, add_special_tokens=False)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,  # noqa: FBT001, FBT002 - as above
        **variables: Any,  # noqa: ANN401 - as above
    ) -> str:
        """Render a chat as text, as `apply_chat_template` does before it tokenizes it.

        Args:
            messages: As for `apply_chat_template`, like the others.
            tools: Tools.
            add_generation_prompt: End with the opening of the assistant's turn.
            variables: Further variables.

        Returns:
            The prompt.

        Raises:
            TypeError: A message is not an object.
            ValueError: There is no template, or it refuses the chat.
        """
        return self._templates.render(messages, tools, add_generation_prompt, **variables)

    def cache_stats(self) -> CacheStats:
        """Return how the cache does.

        Returns:
            Counters since the beginning, and the current size.
        """
        cache = self._cache
        return CacheStats(cache.hits, cache.misses, len(cache), cache.held_tokens)

    def __repr__(self) -> str:
        return f"HfTokenizer({self._tokenizer.get_vocab_size()} tokens, templates={self._templates.names})"

    def _encode_one(self, text: str) -> list[int]:
        # A batch of one: batches release the interpreter's lock.
        return self._tokenizer.encode_batch_fast([text])[0].ids

    def _encode_all(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _added(tokenizer: tokenizers.Tokenizer) -> list[Added]:
    """Return the tokens that are looked for before the text is normalised."""
    added = tokenizer.get_added_tokens_decoder().values()
    return [Added(token.content, token.lstrip, token.single_word) for token in added if not token.normalized]


def _is_deterministic(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether equal texts always have equal ids; BPE with dropout is for training."""
    return not getattr(tokenizer.model, "dropout", None)


def _checked(text: str) -> str:
    require("text", text, str, "str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text has a surrogate at {error.start}, which no tokenizer takes") from None
    return text
