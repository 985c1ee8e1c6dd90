"""Random but seeded sequences of messages as proxies send them, and as they should not."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.models.ext_proc_messages import ProcessingRequest

URLS = [f"http://10.0.0.{number}:8000" for number in (1, 2, 3)]
ADDRESSES = ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.3", "10.9.9.9:1", "", "[", ",,"]
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/metrics", "/"]
MODES = [0, 1, 2, 3, 4, 4, 4, 5]
SUBSETS: list[Any] = [[], ["10.0.0.2"], ADDRESSES[:2], "10.0.0.1:8000, 10.0.0.3", [7, "10.0.0.1"], None]
DETAILS = ["via_upstream", "upstream_reset_before_response_started{}", "overflow upstream", "route_not_found"]
COUNTS = b'{"prompt_tokens": %d, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": %d}}'
ANSWER = b'{"id": "resp_%d", "usage": ' + COUNTS + b"}"


def body(random_: random.Random) -> bytes:
    """Make a body of a request."""
    text = " ".join(random_.choice(["alpha", "beta", "gamma", "delta"]) for _ in range(random_.randrange(1, 200)))
    base: dict[str, Any] = {"model": random_.choice(["m", "n"])}
    kind = random_.randrange(10)
    if kind < 3:
        base["prompt"] = text
    elif kind < 5:
        base["messages"] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    elif kind == 5:
        base["input"] = text
        if random_.random() < 0.5:
            base["previous_response_id"] = f"resp_{random_.randrange(4)}"
    elif kind == 6:
        base["prompt"] = [random_.randrange(1000) for _ in range(random_.randrange(200))]
    elif kind == 7:
        return random_.choice(
            [b"", b"{", b"\xff", b"[1]", b"null", b'{"prompt": "a"} x', b"\xef\xbb\xbf{}", b'{"prompt": [-1]}']
        )
    elif kind == 8:
        return json.dumps({**base, "prompt": text}).encode() + b" " * random_.choice([0, 2000, 3000])
    else:
        base |= {
            "prompt": [text, "x"],
            "n": 2,
            "max_tokens": random_.randrange(100),
            "cache_salt": random_.choice(["a", "b"]),
        }
    return json.dumps(base).encode()


def headers(random_: random.Random, part: Any, pairs: list[tuple[str, bytes]]) -> None:
    """Put headers into a message."""
    for name, value in pairs:
        header = part.headers.headers.add(key=name)
        if random_.random() < 0.8:
            header.raw_value = value
        else:
            header.value = value.decode("latin-1")


def request_headers(random_: random.Random) -> list[tuple[str, bytes]]:
    """Make the headers of a request."""
    pairs = [(":method", b"POST"), (":path", random_.choice(PATHS).encode())]
    optional: list[tuple[str, list[bytes]]] = [
        ("x-session-id", [b"s1", b"s2", b""]),
        ("X-Gateway-Inference-Fairness-Id", [b"t1", b"t2"]),
        ("x-gateway-inference-objective", [b"batch", b"chat", b"other"]),
        ("x-gateway-model-name-rewrite", [b"m2", b"m", b"\xe9"]),
        ("content-encoding", [b"gzip", b"identity"]),
        ("upgrade", [b"websocket"]),
        ("test-epp-endpoint-selection", [b"10.0.0.2:8000", b"10.0.0.1,10.0.0.3:8000", b""]),
        ("x-vllm-priority", [b"3", b"-2"]),
    ]
    for name, values in optional:
        if random_.random() < (0.04 if name in {"upgrade", "content-encoding"} else 0.15):
            pairs.append((name, random_.choice(values)))
            if random_.random() < 0.1:
                pairs.append((name.lower(), random_.choice(values)))
    return pairs


def cut(random_: random.Random, whole: bytes) -> list[bytes]:
    """Cut a body."""
    cuts = sorted(random_.randrange(len(whole) + 1) for _ in range(random_.choice([0, 0, 1, 3])))
    return [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def answer_body(random_: random.Random) -> bytes:
    """Make a body of an answer."""
    counts = ANSWER % (random_.randrange(4), random_.randrange(1, 300), random_.choice([0, 16, 64]))
    if random_.random() < 0.5:
        return counts
    events = [b'data: {"choices": [{"text": "a"}]}\n\n'] * random_.randrange(5)
    return b"".join([*events, b"data: " + counts + b"\n\n", random_.choice([b"data: [DONE]\n\n", b""])])


class Sequence:
    """The messages of one stream."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.messages: list[Any] = []

    def add(self, kind: str) -> Any:
        """Add a message."""
        made = ProcessingRequest()
        getattr(made, kind).SetInParent()
        self.messages.append(made)
        return made

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.random.random() < probability

    def request(self) -> None:
        """Add a request."""
        first = self.add("request_headers")
        headers(self.random, first.request_headers, request_headers(self.random))
        if self.chance(0.2):
            first.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(
                {"x-gateway-destination-endpoint-subset": self.random.choice(SUBSETS)}
            )
        if self.chance(0.8):
            first.protocol_config.request_body_mode = self.random.choice(MODES)
            first.protocol_config.response_body_mode = self.random.choice(MODES)
        if self.chance(0.1):
            first.request_headers.end_of_stream = True
            return
        parts = cut(self.random, body(self.random))
        trailers = self.chance(0.1)
        for index, part in enumerate(parts):
            made = self.add("request_body")
            made.request_body.body = part
            made.request_body.end_of_stream = index == len(parts) - 1 and not trailers
        if trailers:
            self.add("request_trailers")

    def answer(self, statuses: list[bytes]) -> None:
        """Add an answer."""
        answer = self.add("response_headers")
        kind = self.random.choice([b"application/json", b"text/event-stream; charset=utf-8"])
        pairs = [(":status", self.random.choice(statuses)), ("content-type", kind)]
        if self.chance(0.2):
            pairs.append(("retry-after", self.random.choice([b"1", b"0.5", b"soon"])))
        headers(self.random, answer.response_headers, pairs)
        if self.chance(0.6):
            served = {"x-gateway-destination-endpoint-served": self.random.choice(ADDRESSES)}
            answer.metadata_context.filter_metadata["envoy.lb"].update(served)
        if self.chance(0.3):
            details = {"response.code_details": self.random.choice(DETAILS)}
            answer.attributes["envoy.filters.http.ext_proc"].update(details)
        if self.chance(0.1):
            answer.response_headers.end_of_stream = True
            return
        parts = cut(self.random, answer_body(self.random))
        for index, part in enumerate(parts):
            made = self.add("response_body")
            made.response_body.body = part
            made.response_body.end_of_stream = index == len(parts) - 1 and self.chance(0.9)
        if self.chance(0.1):
            self.add("response_trailers")


def sequence(seed: int, *, errors: bool = True) -> list[bytes]:
    """Make the messages of one stream."""
    made = Sequence(seed)
    made.request()
    if made.chance(0.9):
        made.answer([b"200"] * 6 + [b"302", b"404", b"429", b"500", b"503"] * errors)
    messages = made.messages
    if made.chance(0.15):  # as no proxy should
        made.random.shuffle(messages)
    if made.chance(0.1):
        del messages[made.random.randrange(1, len(messages) + 1) :]
    if made.chance(0.02):
        messages[0].observability_mode = True
    return [each.SerializeToString(deterministic=True) for each in messages]
