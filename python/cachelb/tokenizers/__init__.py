"""Token ids of prompts, equal to the engines', for `select_worker(tokens=...)`.

Example:
    >>> from cachelb.tokenizers import Tokenizer
    >>> def route(router, tokenizer: Tokenizer, messages):
    ...     return router.select_worker(tokens=tokenizer.apply_chat_template(messages))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.tokenizers.base import Tokenizer
from cachelb.tokenizers.hf import CacheStats, HfTokenizer

__all__ = ["CacheStats", "HfTokenizer", "Tokenizer"]

if not TYPE_CHECKING:
    from functools import partial

    from cachelb.common.moved import moved_name

    __getattr__ = partial(moved_name, __name__)
