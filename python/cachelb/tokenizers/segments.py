"""Cuts of a text into parts whose token ids are those of the whole, and the cache of such parts.

A tokenizer first cuts a text at its added tokens, such as ``<|im_start|>``, and treats what lies between them on its
own. So a text may be tokenized in parts that begin with such a token, as long as the token is found there whatever
stands around it:

* no other added token contains it, or ends with what it begins with: the search takes the leftmost match and of these
  the longest, and such a token could cover its beginning;
* it cannot overlap itself;
* it does not take in white space on its left, and it begins with a sign that neither does a token before it take in
  nor makes that token a part of a word.

A part begins with the token, rather than ending with it, because some tokenizers treat the start of a text in another
way than the text after a token. Templates put these tokens around every message, so the parts of a chat are its
messages, and those of earlier turns are in the cache.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

ENTRY_TOKENS: Final = 64
"""Overhead of an entry, in tokens of four bytes: key, array object and place in the order."""

_DIGEST_BYTES: Final = 32


class Added(NamedTuple):
    """A token that is searched in the text before anything else."""

    content: str
    lstrip: bool  # takes in white space before it
    single_word: bool  # found only where no letter stands beside it


def cutting_tokens(added: Iterable[Added]) -> list[str]:
    """Choose the tokens in front of which a text may be cut: those always found, in any context.

    `added` are all tokens that are searched in the text as it came, before normalisation.

    Example:
        >>> plain = [Added(text, lstrip=False, single_word=False) for text in ("<s>", "<|im_end|>", "<s><s>", "aba")]
        >>> cutting_tokens(plain)
        ['<|im_end|>']
    """
    tokens = [token for token in added if token.content]
    return [
        token.content
        for token in tokens
        if not token.lstrip
        and not token.single_word
        and not token.content[0].isspace()
        and not (token.content[0].isalnum() or token.content[0] == "_")
        and not any(_may_cover(other.content, token.content) for other in tokens)
    ]


def _may_cover(other: str, token: str) -> bool:
    """Whether a match of one token can keep another from being found where it stands."""
    if other != token and token in other:
        return True
    longest = min(len(other), len(token)) - (other == token)
    return any(other.endswith(token[:length]) for length in range(1, longest + 1))


class Cutter:
    """Cuts texts in front of the tokens of `cutting_tokens`."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, tokens))) if tokens else None

    def cut(self, text: str) -> list[str]:
        """Cut a text into nonempty parts.

        Example:
            >>> Cutter(["<s>"]).cut("a<s>b<s>")
            ['a', '<s>b', '<s>']
        """
        if self._pattern is None:
            return [text] if text else []
        starts = [match.start() for match in self._pattern.finditer(text)]
        edges = [0, *(start for start in starts if start), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(edges) if start < end]


class SegmentCache:
    """Token ids of the parts of texts, least recently used first out. Any thread may call it.

    Parts are known by a digest, so the cache holds no text. It holds `max_tokens` ids, with `ENTRY_TOKENS` added for
    each part; 0 holds nothing. `encode` tokenizes texts, each on its own.
    """

    def __init__(self, max_tokens: int, encode: Callable[[list[str]], list[list[int]]]) -> None:
        self._max_tokens = max_tokens
        self._encode = encode
        self._parts: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = threading.Lock()
        self.held_tokens = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._parts)

    def ids(self, parts: Sequence[str]) -> array[int]:
        """Return the ids of a text that was cut, in order."""
        keys = [hashlib.blake2b(part.encode(), digest_size=_DIGEST_BYTES).digest() for part in parts]
        found = self._look_up(keys)
        missing = {key: part for key, part, ids in zip(keys, parts, found, strict=True) if ids is None}
        # Outside the lock, as this takes longest; two threads may tokenize the same part.
        made = dict(zip(missing, map(_packed, self._encode(list(missing.values()))), strict=True)) if missing else {}
        self._keep(made)
        whole = array("I")
        for key, ids in zip(keys, found, strict=True):
            whole.extend(made[key] if ids is None else ids)
        return whole

    def _look_up(self, keys: Sequence[bytes]) -> list[array[int] | None]:
        with self._lock:
            found = [self._parts.get(key) for key in keys]
            # The first part of a text is the one that the most texts share: it becomes the most recent.
            for key, ids in zip(reversed(keys), reversed(found), strict=True):
                if ids is not None:
                    self._parts.move_to_end(key)
            missed = found.count(None)
            self.hits += len(found) - missed
            self.misses += missed
        return found

    def _keep(self, made: dict[bytes, array[int]]) -> None:
        with self._lock:
            for key, ids in reversed(made.items()):
                cost = len(ids) + ENTRY_TOKENS
                if cost > self._max_tokens or key in self._parts:
                    continue
                self._parts[key] = ids
                self.held_tokens += cost
            while self.held_tokens > self._max_tokens:
                _, ids = self._parts.popitem(last=False)
                self.held_tokens -= len(ids) + ENTRY_TOKENS


def _packed(ids: list[int]) -> array[int]:
    return array("I", ids)
