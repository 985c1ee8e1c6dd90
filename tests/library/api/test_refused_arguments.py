"""Options and arguments that are out of range, of another type or of no use: each callable names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cachelb import Router
from cachelb.boundaries import message_boundaries
from cachelb.events import Endpoint, ZmqSource
from cachelb.index import BlockTracker, hash_blocks, hash_text
from cachelb.records import JsonlRecords
from cachelb.sources import MetricsSource
from cachelb_fakes import FakeFleet
from cachelb_gateway.ext_proc import EndpointPicker
from cachelb_lab.sim import FleetSpec, Measurement, Signals, Slo, Sweep, WorkerSpec, build
from cachelb_lab.sim.gpus import find_gpu, find_model
from cachelb_lab.sim.workloads import parse_arrivals

T, V = TypeError, ValueError
MEASURED = Measurement(1_000, 0, 10, 0.1, 0.5)
REFUSED: dict[Callable[..., object], list[tuple[dict[str, Any], type[Exception], str]]] = {
    MetricsSource: [
        ({"interval_s": 0.0}, V, "interval_s must be above 0, got 0.0"),
        ({"timeout_s": float("nan")}, V, "timeout_s must be a finite number, got nan"),
        ({"max_concurrency": 0}, V, "max_concurrency must be at least 1, got 0"),
        ({"headers": {"X": "a\r\nY: b"}}, V, "header 'X' has a line break or another control character in it"),
        ({"interval_s": "1"}, T, "interval_s must be a number, got str"),
        ({"timeout_s": True}, T, "timeout_s must be a number, got bool"),
        ({"max_concurrency": 2.0}, T, "max_concurrency must be int, got float"),
        ({"headers": {"X": 5}}, T, "header 'X' must be text, got int"),
    ],
    partial(JsonlRecords, "x"): [
        ({"max_bytes": 10}, V, "max_bytes must be at least 4096, got 10"),
        ({"max_bytes": 1e9}, T, "max_bytes must be int, got float"),
        ({"keep": -1}, V, "keep must be at least 0, got -1"),
        ({"keep": True}, T, "keep must be int, got bool"),
        ({"interval_s": 0}, V, "interval_s must be above 0, got 0"),
        ({"interval_s": "1"}, T, "interval_s must be a number, got str"),
    ],
    partial(EndpointPicker, Router(["http://10.0.0.1:8000"])): [
        ({"max_body_bytes": 0}, V, "max_body_bytes must be from 1 to 1099511627776, got 0"),
        ({"max_held_bytes": 0}, V, "max_held_bytes must be from 1 to 1099511627776, got 0"),
        ({"max_streams": -1}, V, "max_streams must be from 1 to 1099511627776, got -1"),
        ({"body_timeout_s": 0}, V, "body_timeout_s must be .* above 0.*, got 0"),
        ({"idle_timeout_s": float("nan")}, V, "idle_timeout_s must be .*, got nan"),
        ({"stream_timeout_s": -1.0}, V, "stream_timeout_s must be .*, got -1.0"),
        ({"policy_timeout_s": "1"}, T, "policy_timeout_s must be a number, got str"),
        ({"expose_headers": ["x-cachelb-wroker"]}, V, 'no header of decisions is called "x-cachelb-wroker"'),
        ({"expose_headers": [1]}, T, "expose_headers must be str, got int"),
        ({"large_bodies": "drop"}, V, 'large_bodies must be one of "refuse", "pass", got "drop"'),
        ({"fallbacks": 4}, V, "fallbacks must be from 0 to 3, got 4"),
        ({"shed_inflight": 0}, V, "shed_inflight must be from 1 to 1099511627776, got 0"),
        ({"priorities": {"batch": "1"}}, T, "must be int, got str"),
        ({"default_body_mode": "grpc"}, V, 'default_body_mode must be one of .*, got "grpc"'),
    ],
    FakeFleet: [
        ({"workers": -1}, V, "workers must be at least 0, got -1"),
        ({"engine": "tgi"}, V, "engine is 'tgi', it must be 'vllm' or 'sglang'"),
        ({"models": []}, V, "models is empty"),
        ({"stream_interval": 0}, V, "stream_interval must be at least 1, got 0"),
        ({"kv_blocks": 0}, V, "kv_blocks must be at least 1, got 0"),
        ({"decode_tps": 0}, V, "decode_tps must be above 0, got 0"),
        ({"time_scale": -1}, V, "time_scale must be 0 or more, got -1"),
        ({"models": "base"}, T, "models must be a list of names, got the str 'base'"),
    ],
    FleetSpec.parse: [
        ({"text": "8xa31"}, V, "no GPU 'a31'; did you mean 'a30'"),
        ({"text": "8x"}, V, "no GPU '8x'"),
        ({"text": "0xa30"}, V, "cannot read '0xa30'"),
        ({"text": "a30+"}, V, "cannot read ''"),
        ({"text": "-3xa30"}, V, "no GPU '-3xa30'"),
        ({"text": "a30:tp0"}, V, "cannot read 'a30:tp0'"),
        ({"text": "a30:tp"}, V, "cannot read 'a30:tp'"),
    ],
    partial(FleetSpec.parse, "a30"): [
        ({"max_num_seqs": 0}, V, "max_num_seqs must be at least 1, got 0"),
        ({"block_size": 0}, V, "block_size must be at least 1"),
        ({"watermark": 1.0}, V, "watermark must be from 0 to below 1"),
        ({"kv_tokens": 15}, V, "kv_tokens 15 holds no block of 16 tokens"),
        ({"commit": "later"}, V, "commit must be one of schedule, step_end, got 'later'"),
        ({"slowdown": ((5.0, 2.0), (1.0, 1.0))}, V, "slowdown needs ascending seconds"),
        ({"mfu": 0}, V, "mfu must be 0.001 or more, got 0"),
        ({"model": "llama"}, V, "no model 'llama'"),
    ],
    partial(WorkerSpec, find_gpu("h100"), find_model("llama-3-8b")): [
        ({"role": "fast"}, V, "role must be one of both, prefill, decode, got 'fast'"),
        ({"link_bytes_per_s": 0.0}, V, "link_bytes_per_s must be above 0"),
        ({"link_latency_s": -1.0}, V, "link_latency_s must be 0 or more"),
    ],
    Signals: [
        ({"first_token_delay_s": -1.0}, V, "first_token_delay_s must be 0 or more"),
        ({"sharing_lag_s": float("nan")}, V, "sharing_lag_s must be"),
        ({"decision_s": -0.001}, V, "decision_s must be 0 or more"),
        ({"event_loss": 1.5}, V, "event_loss must be 1 at most"),
        ({"replay_delay_s": -1.0}, V, "replay_delay_s must be 0 or"),
    ],
    Slo.parse: [
        ({"text": ""}, V, "cannot read ''; write for example ttft=0.5,tpot=50ms"),
        ({"text": "e2e=3"}, V, "cannot read 'e2e=3'"),
        ({"text": "ttft=1,ttft=2"}, V, "cannot read 'ttft=2'"),
        ({"text": "ttft=soon"}, V, "ttft must be a time such as 0.5, 0.5s or 500ms, got 'soon'"),
        ({"text": "tpot="}, V, "tpot must be a time"),
        ({"text": "tpot=0"}, V, "tpot_s must be above 0, got 0.0"),
        ({"text": "ttft=-1ms"}, V, "ttft_s must be above 0, got -0.001"),
        ({"text": "ttft=nan"}, V, "ttft_s must be a finite number, got nan"),
    ],
    Sweep.parse: [
        ({"text": "speed"}, V, "cannot read"),
        ({"text": "=1:2:1"}, V, "cannot read"),
        ({"text": "speed="}, V, "cannot read"),
        ({"text": "speed=1:2"}, V, "cannot read"),
        ({"text": "speed=2:1:1"}, V, "cannot read"),
        ({"text": "speed=1:2:0"}, V, "cannot read"),
        ({"text": "speed=a:b:c"}, V, "cannot read"),
        ({"text": "speed=1,1"}, V, "needs values that differ"),
    ],
    partial(parse_arrivals, rate=5.0): [
        ({"text": "poison"}, V, "arrivals 'poison'"),
        ({"text": "gamma:x"}, V, "arrivals 'gamma:x'"),
        ({"text": "gamma:-1"}, V, "arrivals 'gamma:-1'"),
        ({"text": "step:20"}, V, "arrivals 'step:20'"),
        ({"text": "ramp:9"}, V, "arrivals 'ramp:9': use poisson"),
        ({"text": "bursts:0"}, V, "arrivals 'bursts:0'"),
        ({"text": "poisson:3"}, V, "arrivals 'poisson:3'"),
    ],
    partial(build, count=10): [
        ({"name": "prefix-mixed", "share": 1.5}, V, "must|need"),
        ({"name": "rag", "most_per_prompt": 0}, V, "must|need"),
        ({"name": "rag", "order": "best"}, V, "must|need"),
        ({"name": "monopoly", "share": -0.1}, V, "must|need"),
        ({"name": "bursts", "prefixes": "none"}, V, "must|need"),
        ({"name": "tool-agent", "long_share": 0.9, "short_share": 0.2}, V, "must|need"),
        ({"name": "shared-prefix", "groups": 0}, V, "must|need"),
        ({"name": "shared-prefix", "stages": [(1, 0)]}, V, "must|need"),
        ({"name": "churn", "uses": 0}, V, "must|need"),
        ({"name": "hot-set", "hot": 0}, V, "must|need"),
        ({"name": "giants", "share": 2}, V, "must|need"),
        ({"name": "tenants", "output_tokens": (1,)}, V, "must|need"),
        ({"name": "chat", "turns": 0.5}, V, "must|need"),
        ({"name": "chat", "apps": 0}, V, "must|need"),
        ({"name": "long-documents", "questions": 0}, V, "must|need"),
        ({"name": "prefill-only", "prefixes": 0}, V, "must|need"),
    ],
    partial(replace, MEASURED): [
        ({"cached_tokens": 1_001}, V, "cached_tokens must be at most 1000"),
        ({"total_s": 0.05}, V, "total_s must be 0.1 or more"),
        ({"total_s": 0.1}, V, "total_s must be more than ttft_s"),
        ({"ttft_s": 0.0}, V, "ttft_s must be 1e-06 or more"),
    ],
    ZmqSource: [
        ({"default_port": 0}, V, "default_port must be from 1 to 65535, got 0"),
        ({"default_port": "5557"}, T, "default_port must be a port number, got str"),
        ({"replay_port": 65_536}, V, "replay_port must be from 1 to 65535, got 65536"),
        ({"topic_filter": b"kv"}, T, "topic_filter must be text, got bytes"),
        ({"rcvhwm": 0}, V, "rcvhwm must be at least 1, got 0"),
        ({"rcvhwm": 1.5}, T, "rcvhwm must be int, got float"),
        ({"rcvhwm": True}, T, "rcvhwm must be int, got bool"),
        ({"replay_timeout_s": 0}, V, "replay_timeout_s must be above 0, got 0"),
        ({"replay_timeout_s": float("nan")}, V, "replay_timeout_s must be a finite number, got nan"),
        ({"replay_timeout_s": "5"}, T, "replay_timeout_s must be a number, got str"),
        ({"endpoints": ["a"]}, T, "endpoints must be a mapping or a function, got list"),
        ({"endpoints": {"a": "tcp://a:1"}}, T, "the endpoint of 'a' must be an Endpoint, got str"),
        ({"endpoints": {1: Endpoint("tcp://a:1")}}, T, "a key of endpoints must be a worker's key, got int"),
        ({"discover": 1}, T, "discover must be True or False, got int"),
        ({"discover": True, "endpoints": lambda _: None}, V, "discover is of no use"),
    ],
    Endpoint: [
        ({"address": "gpu0:5557"}, V, "address must be tcp://host:port or ipc:///path, got 'gpu0:5557'"),
        ({"address": "tcp://gpu0"}, V, "address must be"),
        ({"address": "tcp://gpu0:0"}, V, "address must be"),
        ({"address": "tcp://gpu0:70000"}, V, "address must be"),
        ({"address": "tcp://::1:5557"}, V, "address must be"),
        ({"address": "inproc://x"}, V, "address must be"),
        ({"address": "ipc://"}, V, "address must be"),
        ({"address": 5557}, T, "address must be text such as 'tcp://gpu0:5557', got int"),
        ({"address": "tcp://*:5557"}, V, "address must name the engine's host"),
        ({"address": "tcp://a:1", "replay": "tcp://*:2"}, V, "replay must name the engine's host"),
        ({"address": "tcp://a:1", "replay": "x"}, V, "replay must be"),
        ({"address": "tcp://a:1", "bind": 1}, T, "bind must be True or False, got int"),
    ],
    partial(hash_blocks, [1, 2, 3]): [
        ({"block_size": 0}, V, "block_size must be from 1 to 1024, got 0"),
        ({"block_size": 1025}, V, "block_size must be from 1 to 1024, got 1025"),
        ({"block_size": -(2**70)}, V, "block_size must be from 1 to 1024"),
        ({"block_size": 16.0}, T, "block_size must be int, got float"),
        ({"seed": -1}, V, "seed must be from 0"),
        ({"seed": "1"}, T, "seed must be int, got str"),
        ({"secret": 7}, T, "secret must be text, or a list of texts"),
        ({"secret": "short"}, V, "secret must have 16 characters or more, this one has 5"),
        ({"scheme": "sha256"}, V, 'scheme must be "chained", "eagle" or "positional", got "sha256"'),
        ({"namespace": 7}, T, "namespace must be str, Namespace or None, got int"),
        ({"mm": 7}, T, "mm must be an iterable of tuples, got int"),
        ({"mm": [(1, 2)]}, T, r"mm\[0\] must be a tuple \(hash, start, length\)"),
        ({"mm": [(1, 0, 4), (2, -1, 4)]}, V, r"mm\[1\] start must be from 0"),
        ({"mm": [("a", 0, 4)]}, T, r"mm\[0\] hash must be int, got str"),
    ],
    hash_text: [
        ({"text": b"bytes"}, T, "text must be str, got bytes"),
        ({"text": None}, T, "text must be str, got NoneType"),
        ({"text": [1, 2]}, T, "text must be str, got list"),
        ({"text": "x", "chunk_bytes": 0}, V, "chunk_bytes must be from 1 to 4096, got 0"),
        ({"text": "x", "chunk_bytes": 4097}, V, "chunk_bytes must be from 1 to 4096, got 4097"),
        ({"text": "x", "chunk_bytes": 64.0}, T, "chunk_bytes must be int, got float"),
        ({"text": "x", "seed": -1}, V, "seed must be from 0"),
        ({"text": "x", "namespace": 7}, T, "namespace must be str, Namespace or None, got int"),
    ],
    partial(message_boundaries, range(100)): [
        ({"markers": "gpt"}, V, "there is no marker 'gpt'; there are llama3, chatml"),
        ({"block_alignment": 0}, V, "block_alignment must be at least 1, got 0"),
        ({"char_ends": [5, 3]}, V, r"char_ends\[1\] is 3 behind 5: they must rise"),
        ({"char_ends": [-1, 3]}, V, r"char_ends\[0\] is -1: they must rise from 0 or more"),
        ({"char_ends": [5], "n_chars": 4}, V, "the last of char_ends is 5, but the prompt has 4"),
    ],
    BlockTracker: [
        ({"block_size": 0}, V, "block_size must be from 1 to 1024, got 0"),
        ({"block_size": 1025}, V, "block_size must be from 1 to 1024, got 1025"),
        ({"block_size": -1}, V, "block_size must be from 1 to 1024, got -1"),
        ({"block_size": "16"}, T, "block_size must be int, got str"),
        ({"block_size": 16.0}, T, "block_size must be int, got float"),
        ({"max_blocks_per_worker": 0}, V, "max_blocks_per_worker must be from 1 to 4294967295, got 0"),
        ({"max_blocks_per_worker": 2**32}, V, "max_blocks_per_worker must be from 1 .*, got 4294967296"),
        ({"max_blocks_per_worker": None}, T, "max_blocks_per_worker must be int, got NoneType"),
        ({"seed": -1}, V, "seed must be from 0 to 18446744073709551615, got -1"),
        ({"seed": 2**64}, V, "seed must be from 0 to 18446744073709551615, got 18446744073709551616"),
        ({"hashing": "sha256"}, V, "hashing must be .*sha256"),
        ({"matcher": "jump"}, V, "matcher must be .*jump"),
        ({"hashing": 3}, T, "hashing"),
        ({"matcher": None}, T, "matcher"),
        ({"clock": 5}, T, "clock must be callable and return seconds, got int"),
        ({"blocksize": 4}, T, "blocksize"),
    ],
}
CASES = [(call, *row) for call, rows in REFUSED.items() for row in rows]


@pytest.mark.parametrize(("call", "given", "error", "message"), CASES)
def test_what_a_callable_cannot_take_is_named(
    call: Callable[..., object], given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(**given)
