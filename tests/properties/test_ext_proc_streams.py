"""Whatever a proxy sends, in whatever order, a stream raises nothing and leaves nothing booked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cachelb import Router
from cachelb.integrations.ext_proc.addresses import Addresses
from cachelb.integrations.ext_proc.exchange import Exchange
from tests.models.ext_proc_messages import ProcessingRequest
from cachelb.integrations.ext_proc.picking import Options, Picker

URLS = [f"http://10.0.0.{number}:8000" for number in (1, 2, 3)]
WHOLE = json.dumps({"prompt": "word " * 100, "model": "m"}).encode()
BODIES = st.sampled_from([b"", WHOLE, WHOLE[:40], b'{"prompt": [-1]}', b"\xff", b"x" * 3000])
ADDRESSES = st.sampled_from(["10.0.0.1:8000", "10.0.0.3:8000", "10.9.9.9:1", "", "[", ",,"])
NAMES = [
    ":status",
    "content-type",
    "upgrade",
    "x-gateway-model-name-rewrite",
    "x-session-id",
    "test-epp-endpoint-selection",
]
VALUES = st.one_of(st.sampled_from([b"text/event-stream", b"10.0.0.1", b"\xff\x00"]), st.binary(max_size=4))


@st.composite
def messages(draw: st.DrawFn) -> Any:
    """Make any message that a proxy may send."""
    message = ProcessingRequest()
    if draw(st.booleans()):
        message.protocol_config.request_body_mode = draw(st.integers(0, 6))
        message.protocol_config.response_body_mode = draw(st.integers(0, 6))
    kind = draw(st.sampled_from([field.name for field in message.DESCRIPTOR.oneofs[0].fields]))
    part = getattr(message, kind)
    part.SetInParent()
    if kind.endswith("body"):
        part.body = draw(BODIES)
    if kind.endswith("headers"):
        for name in draw(st.lists(st.sampled_from(NAMES[1:]), max_size=3)):
            part.headers.headers.add(key=name, raw_value=draw(VALUES))
        status = draw(st.sampled_from([b"200", b"302", b"404", b"429", b"503"]))
        part.headers.headers.add(key=":status", raw_value=status)
    if not kind.endswith("trailers"):
        part.end_of_stream = draw(st.booleans())
    if draw(st.booleans()):
        served = {"x-gateway-destination-endpoint-served": draw(ADDRESSES)}
        message.metadata_context.filter_metadata["envoy.lb"].update(served)
    if draw(st.integers(0, 3)) == 0:
        subset = draw(st.one_of(st.none(), ADDRESSES, st.lists(st.one_of(ADDRESSES, st.integers()), max_size=3)))
        hint = {"x-gateway-destination-endpoint-subset": subset}
        message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(hint)
    return message


@settings(max_examples=3 * settings().max_examples)
@given(
    st.lists(messages(), max_size=8),
    st.sampled_from(["none", "streamed", "buffered", "duplex"]),
    st.sampled_from(["refuse", "pass"]),
    st.booleans(),
)
def test_any_sequence_of_messages_leaves_nothing_booked(sequence: list[Any], mode: Any, large: Any, flag: bool) -> None:
    router = Router(URLS, seed=1)
    router.set_ready(URLS[1], False)
    options = Options(
        max_body_bytes=2000, large_bodies=large, default_body_mode=mode, rewrite_model=flag, conformance=flag
    )
    exchange = Exchange(Picker(router, Addresses(router, None), options))
    for message in sequence:
        received = ProcessingRequest.FromString(message.SerializeToString())
        for reply in asyncio.run(exchange.receive(received)):
            assert reply.WhichOneof("response")
            assert reply.SerializeToString()
        assert router.stats().open_requests <= 1
        if exchange.over:
            break
    exchange.close()
    exchange.close()
    assert router.stats().open_requests == 0
    assert router.stats().endings["abandoned"] == 0
    router.validate()
