"""Messages of real engines, applied one after the other: after each step the router's view is the engine's cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.models.kv_events import as_map

import cachelb

ADAPTERS = {"la", "lb"}
EXTRA = [4095]
"""Without a token behind them, an engine computes the last block of a prompt again."""


class Announced:
    """Every chain of blocks that an engine named, with the names, read off the messages in the most obvious way."""

    def __init__(self) -> None:
        self.chains: dict[str, tuple[list[str], list[int], dict[str, str]]] = {}

    def read(self, message: Any) -> None:
        for event in map(as_map, message[1]):
            if event["type"] == "BlockStored" and any(event["token_ids"]):  # prompt embeddings have zeros for tokens
                self._store(event)

    def _store(self, event: dict[str, Any]) -> None:
        parent, size = event["parent_block_hash"], event["block_size"]
        names, tokens, identity = self.chains[_shown(parent)] if parent is not None else ([], [], {})
        if parent is None:
            lora, first = event["lora_name"], (event["extra_keys"] or [None])[0] or []
            salts = [key for key in first if key != lora]
            identity = {"lora": lora} if lora else {}
            if salts:
                (identity["cache_salt"],) = salts
        for at, name in enumerate(event["block_hashes"]):
            names, tokens = [*names, _shown(name)], tokens + event["token_ids"][at * size : (at + 1) * size]
            self.chains[_shown(name)] = (names, tokens, identity)


def _shown(name: Any) -> str:
    """Write a name as the index of the captures does."""
    return str(name) if isinstance(name, int) else str(name["bytes"])


def identity_of(request: dict[str, Any]) -> dict[str, str]:
    identity = {"lora": request["model"]} if request.get("model") in ADAPTERS else {}
    return identity | ({"cache_salt": request["cache_salt"]} if "cache_salt" in request else {})


def matched(router: cachelb.Router[str], tokens: list[int], identity: dict[str, str]) -> int:
    return router.select_worker(tokens=tokens, dry_run=True, **identity).matched_tokens  # type: ignore[arg-type]


@pytest.mark.parametrize(("stream", "reported"), [("w0", 14), ("w1", 9)])
def test_streams_end_in_the_states_of_their_index(captures: Path, stream: str, reported: int) -> None:
    index = json.loads((captures / "index.json").read_text("utf-8"))
    messages = {message["seq"]: message for message in index["messages"] if message["stream"] == stream}
    size = index["streams"][stream]["block_size"]
    router, announced, compared = cachelb.Router(["w"], policy="kv-aware", block_size=size, seed=1), Announced(), 0
    for scenario in (scenario for scenario in index["scenarios"] if scenario["stream"] == stream):
        for said in scenario["requests"]:
            if said["predicted_before"] is None:
                continue
            predicted = matched(router, said["request"]["prompt"], identity_of(said["request"]))
            assert predicted == said["predicted_before"], scenario["scenario"]
            if not said.get("remark"):
                compared += 1
                assert predicted == said["cached_tokens"], scenario["scenario"]
        for seq in scenario["seqs"]:
            announced.read(messages[seq]["decoded"])
            router.event_sink.apply_events("w", (captures / messages[seq]["payload"]).read_bytes())
        state = scenario["end_state"]
        (worker,) = router.stats().workers
        assert worker.kv_events is not None
        assert (worker.index_blocks.get("gpu", 0), worker.kv_events.unknown_removals) == (
            state["blocks"],
            state["unknown_removals"],
        ), scenario["scenario"]
        held = set(state["held"])
        for names, tokens, identity in announced.chains.values():
            blocks = next((at for at, name in enumerate(names) if name not in held), len(names))
            assert matched(router, tokens + EXTRA, identity) == blocks * size, scenario["scenario"]
        router.validate()
    assert compared == reported
    assert len(announced.chains) > 40
