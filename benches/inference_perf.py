"""inference-perf in front of `cachelb serve` with fake engines: its workloads, requests and figures, by policy.

    python -m benches.inference_perf --source ../inference-perf [--only shared-prefix] [--policy adaptive,round-robin]

`--source` is a checkout of kubernetes-sigs/inference-perf, which is not on PyPI and needs Python 3.12 (`--python`). It
is installed into .venv-inference-perf. The tokenizer is trained here, on docs/, as none can be downloaded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benches.compare.environment import install_into
from benches.programs import program

from cachelb_fakes import FakeFleet

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-inference-perf"
POLICIES = "adaptive,cache-aware,round-robin"
FLEET = {"workers": 4, "kv_blocks": 2_000, "prefill_tps": 8_000.0, "decode_tps": 50.0, "time_scale": 1.0}
"""32,000 tokens a worker, of four bytes each: less than all prefixes of a workload."""
TOKENIZER = """
import pathlib, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
made = Tokenizer(models.BPE())
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
letters = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=letters, special_tokens=["<eos>"], show_progress=False)
made.train(sorted(map(str, pathlib.Path(sys.argv[1]).glob("*.md"))), trainer)
PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>").save_pretrained(sys.argv[2])
"""


def poisson(rate: float, duration: int) -> dict[str, Any]:
    return {"type": "poisson", "stages": [{"rate": rate, "duration": duration}], "base_seed": 1, "num_workers": 1}


def sizes(mean: int, spread: int) -> dict[str, Any]:
    return {"type": "normal", "min": mean // 4, "max": mean * 4, "mean": mean, "std_dev": spread}


def shared_prefix(groups: int, users: int, system: int, question: int, **more: object) -> dict[str, Any]:
    lengths = {"system_prompt_len": system, "question_len": question, "output_len": 32, "seed": 1}
    return {
        "type": "shared_prefix",
        "shared_prefix": {"num_groups": groups, "num_prompts_per_group": users} | lengths | more,
    }


CONVERSATIONS = {
    "seed": 1,
    "num_conversations": 25,  # of 24, round-robin over four workers returns every turn to the same one
    "shared_system_prompt_len": 500,
    "dynamic_system_prompt_len": sizes(1_500, 500),
    "turns_per_conversation": sizes(8, 3),
    "input_tokens_per_turn": sizes(200, 100),
    "output_tokens_per_turn": sizes(32, 8),
    "max_model_len": 20_000,
}
WORKLOADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "shared-prefix": (shared_prefix(24, 20, 2_500, 150), poisson(6, 60)),
    "multi-turn-chat": (shared_prefix(25, 10, 1_500, 150, enable_multi_turn_chat=True), poisson(4, 60)),
    "conversation-replay": (
        {"type": "conversation_replay", "conversation_replay": CONVERSATIONS},
        {"type": "concurrent", "stages": [{"num_requests": 200, "concurrency_level": 12}], "num_workers": 1},
    ),
}
"""Data and load of each, in inference-perf's own words."""


def main() -> None:
    """Install missing tools, run everything, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="a checkout of inference-perf; only for the first run")
    parser.add_argument("--python", default="python3.12", help="an interpreter of 3.12 or later; for the first run")
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--policy", default=POLICIES)
    parser.add_argument("--api", default="completion", choices=["completion", "chat"])
    given = parser.parse_args()
    if not VENV.exists():
        if given.source is None:
            parser.error("--source is missing: a checkout of kubernetes-sigs/inference-perf")
        install_into(VENV, str(given.source.resolve()), python=given.python)
    print("| workload | policy | requests | failed | TTFT mean, ms | p99, ms | latency mean, ms | cached |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder, "tokenizer")
        train = [str(VENV / "bin" / "python"), "-c", TOKENIZER, str(ROOT / "docs"), str(tokenizer)]
        subprocess.run(train, check=True, stderr=subprocess.DEVNULL)
        for name in given.only.split(","):
            for policy in given.policy.split(","):
                print(f"| {name} | `{policy}` | {' | '.join(row(name, policy, tokenizer, given.api))} |", flush=True)


def row(name: str, policy: str, tokenizer: Path, api: str) -> Iterator[str]:
    """Run a workload with a policy and yield the cells of its row."""
    data, load = WORKLOADS[name]
    with FakeFleet(**FLEET) as fleet, tempfile.TemporaryDirectory() as folder:  # type: ignore[arg-type] # by name
        served = [word for url in fleet.urls for word in ("--worker", url)]
        served += ["--listen", "127.0.0.1:0", "--admin", "none", "--drain-s", "0"]
        with program("-m", "cachelb", "serve", *served, environment={"CACHELB_POLICY": policy}) as (_, url):
            config = Path(folder, "config.json")  # JSON is YAML
            settings = {
                "api": {"type": api, "streaming": True},
                "data": data,
                "load": load,
                "server": {"type": "vllm", "base_url": url},  # it asks for the model's name
                "tokenizer": {"pretrained_model_name_or_path": str(tokenizer)},
                "storage": {"local_storage": {"path": f"{folder}/reports"}},
            }
            config.write_text(json.dumps(settings))
            command = [str(VENV / "bin" / "inference-perf"), "--config_file", str(config), "--log-level", "WARNING"]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            found = sorted(Path(folder, "reports").glob("**/summary_lifecycle_metrics.json"))
            if ran.returncode or not found:
                raise SystemExit(f"inference-perf failed:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
            report = json.loads(found[0].read_text())
        counts = [worker.counts for worker in fleet.workers]
    good, failed = report["successes"], report["failures"]["count"]
    ttft, latency = good["latency"]["time_to_first_token"], good["latency"]["request_latency"]
    yield from (str(good["count"]), str(failed))
    yield from (f"{value * 1e3:,.0f}" for value in (ttft["mean"], ttft["p99"], latency["mean"]))
    yield f"{sum(each.cached_tokens for each in counts) / sum(each.prompt_tokens for each in counts):.1%}"


if __name__ == "__main__":
    main()
