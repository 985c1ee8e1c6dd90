"""The endpoint picker gives the replies that it gave when it was written in Python, whatever a proxy sends."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from tests.models.ext_proc_golden import LENGTH, ROUNDS, messages_of, normal, options_of, recorded, router_of
from tests.models.ext_proc_messages import METHOD, ProcessingRequest, ProcessingResponse
from tests.waiting import wait_until

from cachelb_gateway.ext_proc import EndpointPicker

GOLDEN = recorded()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_replies_and_counts_are_those_recorded(round_: int) -> None:
    golden = GOLDEN[round_]
    router = router_of(round_)
    picker = EndpointPicker(router, **options_of(round_))
    port = asyncio.run(picker.start("127.0.0.1:0"))
    # Not that of asyncio, which drops replies that are under way if the stream ends while it writes.
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        process = channel.stream_stream(METHOD, response_deserializer=ProcessingResponse.FromString)
        for index in range(LENGTH):
            messages = messages_of(round_, index)
            found = normal(list(process(iter(messages))))
            assert found == golden["replies"][index], (index, [*map(ProcessingRequest.FromString, messages)])
            wait_until(lambda: picker.open_streams == 0)
            assert (picker.held_bytes, router.stats().open_requests) == (0, 0)
        assert picker.counts == golden["counts"]
    asyncio.run(picker.stop(0))
    endings = {name: count for name, count in router.stats().endings.items() if count}
    assert endings == golden["endings"]
    router.validate()
