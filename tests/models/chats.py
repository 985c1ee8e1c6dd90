"""Chats of made-up language, and a byte-level BPE trained on it: a tokenizer as real as a test can make one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

_SYLLABLES = ("ka", "lo", "min", "ter", "sa", "vou", "ri", "en", "dal", "pre", "st", "o", "ing", "ux", "the", "qua")
_WORDS = 1_000


def _text(rng: np.random.Generator, words: Sequence[str], count: int) -> str:
    ranks = np.minimum(rng.zipf(1.3, count), len(words)) - 1
    return " ".join(words[rank] for rank in ranks).capitalize() + "."


def rendered_chats(count: int, *, seed: int) -> list[list[str]]:
    """Make chats of a system prompt and some turns, as a template without tokens of its own writes their messages."""
    rng, of_words = np.random.default_rng(seed), np.random.default_rng(0)
    words = ["".join(of_words.choice(_SYLLABLES, size=of_words.integers(1, 5))) for _ in range(_WORDS)]
    made = []
    for _ in range(count):
        chat = ["### System:\n" + _text(rng, words, int(rng.integers(80, 400))) + "\n\n"]
        for turn in range(int(rng.integers(1, 8))):
            content = _text(rng, words, max(2, round(50 * float(rng.lognormal(0.0, 0.8)))))
            chat.append(f"### {('User', 'Assistant')[turn % 2]}:\n{content}\n\n")
        made.append(chat)
    return made


@cache
def tokenizer() -> Tokenizer:
    """Train the tokenizer."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1_500, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(["".join(chat) for chat in rendered_chats(30, seed=1)], trainer)
    return trained
