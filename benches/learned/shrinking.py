"""Traces with shorter prompts and answers, as Lodestar makes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cachelb_lab.sim import Workload
from cachelb_lab.sim.trace_files.mixing import mix
from cachelb_lab.sim.workloads import Poisson


def shrunk(
    workload: Workload,
    *,
    rate: float,
    seed: int = 0,
    prompt: tuple[int, int] = (50, 512),
    max_prompt_tokens: int = 10_000,
    output: tuple[int, int] = (1, 2),
) -> Workload:
    """Shrink prompts and answers and let requests arrive at a rate.

    Prompts share the same fraction as before, to within one block. Answers lose their hashes, and ends of messages
    become unknown.

    Args:
        workload: The requests.
        rate: Arrivals per second, a Poisson process; of sessions, where requests follow others.
        seed: Seed of the arrivals.
        prompt: New tokens for so many old ones; the default makes 50 of a Mooncake id.
        max_prompt_tokens: Length at which longer prompts are cut.
        output: Likewise for answers; half by default.

    Returns:
        A workload.

    Raises:
        ValueError: A fraction is not between 0 and 1.
    """
    for key, (new, old) in {"prompt": prompt, "output": output}.items():
        if not 0 < new <= old:
            raise ValueError(f"{key} must be a fraction of at most 1, got {new}/{old}")
    (new, old), size = prompt, workload.block_size
    lengths = workload.prompt_tokens.astype(np.int64)
    tokens = np.clip(lengths * new // old, 1, max(1, max_prompt_tokens))
    blocks = tokens // size
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    nth = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], blocks) + 1
    # The old blocks that lie wholly before the end of a new one determine its parent.
    before = nth * size * old // new // size
    # A prompt that would shrink to nothing keeps one token, which may be a block.
    before = np.minimum(before, np.repeat(lengths // size, blocks))
    named = workload.hashes[np.repeat(workload.offsets[:-1].astype(np.int64), blocks) + before - 1]
    root = workload.parent < 0
    arrival_s = np.full(len(workload), np.nan)
    arrival_s[root] = Poisson(rate).times(int(root.sum()), np.random.default_rng(seed))
    outputs = np.maximum(1, workload.output_tokens.astype(np.int64) * output[0] // output[1])
    return replace(
        workload,
        seed=seed,
        arrival_s=arrival_s,
        prompt_tokens=tokens.astype(np.uint32),
        output_tokens=outputs.astype(np.uint32),
        hashes=mix(named + nth.astype(np.uint64)),
        offsets=offsets.astype(np.uint64),
        output_hashes=np.empty(0, dtype=np.uint64),
        output_offsets=np.zeros(len(workload) + 1, dtype=np.uint64),
        boundaries=None,
        boundary_offsets=None,
    ).in_order()
