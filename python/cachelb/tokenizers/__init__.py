"""Token ids of prompts, equal to the engines', for `select_worker(tokens=...)`.

Example:
    >>> from cachelb.tokenizers import Tokenizer
    >>> def route(router, tokenizer: Tokenizer, messages):
    ...     return router.select_worker(tokens=tokenizer.apply_chat_template(messages))
"""

from __future__ import annotations

from cachelb.tokenizers.base import Tokenizer
from cachelb.tokenizers.hf import CacheStats, HfTokenizer
from cachelb.tokenizers.probe import probe_template

__all__ = ["CacheStats", "HfTokenizer", "Tokenizer", "probe_template"]
