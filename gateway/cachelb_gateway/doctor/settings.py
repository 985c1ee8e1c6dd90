"""Settings of the doctor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachelb.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an examination.

    Attributes:
        api_key: Key of the engines' API, never shown.
        model: Model to probe; None takes the first that is not an adapter.
        block_size: Block size of the router; None takes the engines'.
        events_port: Port of the event socket, for engines that do not report it.
        replay_port: Port of the replay socket, likewise.
        tokenizer: Tokenizer of the gateway, to compare with the engines'.
        timeout_s: Seconds an answer, and the events of a prompt, may take.
        router: Admin address of a gateway that routes to the workers, to read which of its settings they contradict.
        router_token: Bearer token of that address, never shown.
        seed: Seed of the probes; None takes another one each time, so that no cache has them.

    Example:
        >>> from cachelb_gateway.doctor import Settings
        >>> Settings(block_size=16, timeout_s=5.0).timeout_s
        5.0
    """

    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    block_size: int | None = None
    events_port: int | None = None
    replay_port: int | None = None
    tokenizer: Tokenizer | None = None
    timeout_s: float = 10.0
    router: str | None = None
    router_token: str | None = field(default=None, repr=False)
    seed: int | None = None
