"""Writes models that vLLM starts without weights: `python tests/engine/model.py FOLDER --size tiny --adapter la`.

Runs in the engine's environment, because the tokenizer is trained with the `tokenizers` package. Adapters go into
folders `adapters/<name>` of the model's; only they hold numbers, the model itself is started with dummy weights.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 4096
SPECIAL_TOKENS = ("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>")
TRAINING_FILES = 150
LORA_RANK = 8
LORA_ALPHA = 16
LORA_SPREAD = 0.02
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Size:
    """The dimensions of a Llama; a head has at least 32 numbers, with 16 the engine dies at its first request."""

    hidden: int
    layers: int
    heads: int
    mlp: int
    positions: int

    @property
    def head(self) -> int:
        """Numbers per head."""
        return self.hidden // self.heads


SIZES = {
    "tiny": Size(hidden=128, layers=2, heads=4, mlp=256, positions=16_384),
    "mid": Size(hidden=256, layers=4, heads=4, mlp=704, positions=32_768),
}

_SLIDING = {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 6,
    "sliding_window": 128,
    "query_pre_attn_scalar": 64,
    "rope_local_base_freq": 10_000.0,
    "hidden_activation": "gelu_pytorch_tanh",
}
HYBRIDS: dict[str, dict[str, Any]] = {
    "gemma3": {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **_SLIDING},
    "gemma4": {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        **_SLIDING,
        "global_head_dim": 128,
        "num_global_key_value_heads": 4,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
    },
    "qwen3-next": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_hidden_layers": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
    },
}
"""Models whose layers keep different parts of a prompt: in place of a Llama's fields, over its dimensions."""
HYBRID_SIZE = Size(hidden=256, layers=6, heads=4, mlp=512, positions=16_384)


def write_config(folder: Path, size: Size, fields: dict[str, Any]) -> None:
    """Write what vLLM reads of the architecture."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "head_dim": size.head,
        "max_position_embeddings": size.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **fields,
    }
    _write_json(folder / "config.json", config)


def write_tokenizer(folder: Path, positions: int) -> None:
    """Train a byte-level BPE on files of the standard library and write it with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:TRAINING_FILES]
    tokenizer.train([str(path) for path in texts], trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        message = f"trained {tokenizer.get_vocab_size()} entries from {len(texts)} files, the model has {VOCABULARY}"
        raise RuntimeError(message)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions,
    }
    _write_json(folder / "tokenizer_config.json", config)


def write_adapter(folder: Path, size: Size, *, seed: str) -> None:
    """Write a LoRA adapter in the layout of PEFT, for the query and value projections, with random numbers."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": LORA_RANK,
        "lora_alpha": LORA_ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "inference_mode": True,
    }
    _write_json(folder / "adapter_config.json", config)
    generator = random.Random(seed)
    shapes = {
        f"base_model.model.model.layers.{layer}.self_attn.{projection}.lora_{half}.weight": shape
        for layer in range(size.layers)
        for projection in ("q_proj", "v_proj")
        for half, shape in (("A", (LORA_RANK, size.hidden)), ("B", (size.hidden, LORA_RANK)))
    }
    _write_safetensors(folder / "adapter_model.safetensors", shapes, generator)


def _write_safetensors(path: Path, shapes: dict[str, tuple[int, int]], generator: random.Random) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, (rows, columns) in shapes.items():
        count = rows * columns
        begin = len(data)
        data += struct.pack(f"<{count}f", *(generator.gauss(0.0, LORA_SPREAD) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Write the model and its adapters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to create")
    parser.add_argument("--size", choices=[*SIZES, *HYBRIDS], default="tiny")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME", help="a LoRA adapter to write")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    size = SIZES.get(arguments.size, HYBRID_SIZE)
    folder.mkdir(parents=True)
    write_config(folder, size, HYBRIDS.get(arguments.size, {}))
    write_tokenizer(folder, size.positions)
    for name in arguments.adapter:
        write_adapter(folder / "adapters" / name, size, seed=name)


if __name__ == "__main__":
    main()
