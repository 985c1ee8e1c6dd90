"""The doctor on real engines: everything is as it should be, and what is not is found."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.commands import app
from tests.engine.engine import BLOCK_SIZE, MODEL_NAME, Engine

from cachelb.tokenizers import HfTokenizer
from cachelb_gateway.doctor import Settings, examine

PROBES = f"0/0, {4 * BLOCK_SIZE}/{4 * BLOCK_SIZE}, {2 * BLOCK_SIZE}/{2 * BLOCK_SIZE}, {3 * BLOCK_SIZE}/{3 * BLOCK_SIZE}"


def doctor(engines: list[Engine], *arguments: object) -> tuple[int, dict[str, Any]]:
    urls = [engine.url for engine in engines]
    result = CliRunner().invoke(app, ["doctor", *urls, "--json", "--timeout", "60", *map(str, arguments)])
    return result.exit_code, json.loads(result.stdout)


def test_real_engines_pass_every_check(engines: list[Engine], model: Path) -> None:
    for _ in range(2):
        status, document = doctor(engines, "--tokenizer", model, "--block-size", BLOCK_SIZE)
        checks = [check for worker in document["workers"] for check in worker["checks"]] + document["fleet"]
        assert {check["verdict"] for check in checks} == {"ok"}, [each for each in checks if each["verdict"] != "ok"]
        assert status == 0
        predictions = [check["seen"] for check in checks if check["name"] == "prediction"]
        assert [seen.partition(": ")[2] for seen in predictions] == [PROBES, PROBES]


def test_an_adapter_is_predicted_too(engines: list[Engine]) -> None:
    status, document = doctor(engines[:1], "--model", "la")
    checks = {check["name"]: check for check in document["workers"][0]["checks"]}
    assert status == 0
    assert checks["model"]["seen"].startswith("la,")
    assert checks["prediction"]["seen"].endswith(PROBES)


def test_a_template_of_another_model_is_found(engines: list[Engine], model: Path) -> None:
    other = HfTokenizer.from_directory(model, chat_template="{{ messages[0].content }}")
    diagnosis = asyncio.run(examine([engines[0].url], Settings(tokenizer=other, timeout_s=60.0)))
    checks = {check.name: check for check in diagnosis.workers[0].checks}
    assert checks["template"].verdict == "fail"
    assert checks["template"].seen.startswith("a chat of 1 messages")


def test_token_ids_of_chats_are_those_of_the_engine(engines: list[Engine], model: Path) -> None:
    tokenizer = HfTokenizer.from_directory(model)
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Answer <|im_end|>\n briefly."},
        {"role": "user", "content": [{"type": "text", "text": "one  "}, {"type": "text", "text": "\ttwo"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "naïve 日本語 🦊\n\n"},
    ]
    for end in (1, 2, 4, 4):
        body: dict[str, object] = {"model": MODEL_NAME, "messages": chat[:end]}
        assert engines[0].post("/tokenize", body)["tokens"] == tokenizer.apply_chat_template(chat[:end]).tolist()
        body["add_generation_prompt"] = False
        theirs = engines[0].post("/tokenize", body)["tokens"]
        assert theirs == tokenizer.apply_chat_template(chat[:end], add_generation_prompt=False).tolist()
    text = "def f(x):\n    return x <s> naïve"
    assert engines[0].post("/tokenize", {"model": MODEL_NAME, "prompt": text})["tokens"] == list(tokenizer.encode(text))


def test_a_dead_engine_is_a_verdict(engines: list[Engine]) -> None:
    engines[1].kill()
    status, document = doctor(engines)
    assert status == 1
    alive, dead = document["workers"]
    assert (alive["verdict"] == "fail", [check["verdict"] for check in dead["checks"]]) == (False, ["fail"])
