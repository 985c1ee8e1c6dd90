"""Selections and reservations for programs that forward requests themselves, in the shapes of Dynamo's selector."""

from __future__ import annotations

import hashlib
import sys
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cachelb.arguments import seconds, whole
from cachelb.requests import encode_body

if TYPE_CHECKING:
    from cachelb.decision import Decision
    from cachelb.router import Router

_ID_LENGTH: Final = 256
_MASK: Final = (1 << 64) - 1
_MOST_SELECTIONS: Final = 1024
_DEFAULT_MODEL: Final = "default"


class SelectorError(Exception):
    """A request that the selector refuses."""

    def __init__(self, status: int, message: str) -> None:
        """Keep both."""
        super().__init__(message)
        self.status = status


class _Selection(NamedTuple):
    """A selection without a booking, to be booked by its id."""

    key: str
    request: dict[str, Any]


class _Reservation(NamedTuple):
    decision: Decision[Any]
    model_name: str
    group: str
    since_s: float


@lru_cache(maxsize=8192)
def worker_id(key: str) -> int:
    """Return the number of a worker: the same in every process, below 2**53, so that every language can hold it.

    Example:
        >>> worker_id("http://gpu0:8000") == worker_id("http://gpu0:8000") < 2**53
        True
    """
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 11


class Selector:
    """Selects workers, and holds the bookings of callers until they end them, by `selection_id`.

    A booking that its caller forgot ends with `ttl_s`, or with the router's `booking_ttl_s`, whichever is first.
    """

    def __init__(self, router: Router[Any], *, ttl_s: float = 3600.0, max_reservations: int = 65_536) -> None:
        """Hold nothing yet."""
        self._router = router
        self._ttl_s = seconds("ttl_s", ttl_s)
        self._most = whole("max_reservations", max_reservations, 1)
        self._selections: OrderedDict[str, _Selection] = OrderedDict()
        self._reservations: OrderedDict[str, _Reservation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reservations)

    def select(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Select without a booking; `reserve` can book it by its `selection_id`."""
        name = _selection_id(fields)
        request = self._request(fields)
        decision = self._router.select_worker(**request, dry_run=True)
        if name is not None:
            self._selections[name] = _Selection(decision.key, request)
            while len(self._selections) > _MOST_SELECTIONS:
                self._selections.popitem(last=False)
        return self._shape(fields, decision, name)

    def select_and_reserve(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Select, and book in the same step."""
        name = _selection_id(fields) or str(uuid.uuid4())
        self._check_free(name)
        decision = self._router.select_worker(**self._request(fields))
        self._hold(name, fields, decision)
        return self._shape(fields, decision, name)

    def reserve(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Book the selection of that id, or the prompt in the request on the worker in it."""
        name = _selection_id(fields)
        if name is None:
            raise SelectorError(400, "selection_id is required")
        self._check_free(name)
        if fields.get("worker_id") is None:
            selection = self._selections.get(name)
            if selection is None:
                raise SelectorError(404, f"no selection {name!r}: select first, or give a worker_id")
            key, request = selection
        else:
            key, request = self._key(fields["worker_id"]), self._request(fields)
        decision = self._book(key, request)
        self._selections.pop(name, None)
        self._hold(name, fields, decision)
        shape = self._shape(fields, decision, name)
        return {part: shape[part] for part in _RESERVED}

    def prefill_complete(self, name: str) -> None:
        """Report the first token, which ends the prefill load."""
        self._find(name).on_first_token()

    def output_block(self, name: str) -> None:
        """Report one more block of output."""
        self._find(name).on_tokens(self._block_size)

    def complete(self, name: str, usage: Mapping[str, Any]) -> None:
        """Report the end with the engine's counts, which releases the load."""
        counts = {each: usage[each] for each in ("cached_tokens", "prompt_tokens", "output_tokens") if each in usage}
        self._find(name).on_complete(**counts)
        del self._reservations[name]

    def free(self, name: str) -> None:
        """Release the load."""
        self.complete(name, {})

    def close(self) -> None:
        """Release everything."""
        for reservation in self._reservations.values():
            reservation.decision.cancel()
        self._reservations.clear()

    @property
    def _block_size(self) -> int:
        config = self._router.config
        return 16 if config is None else int(config.options.get("block_size", 16))

    def _book(self, key: str, request: dict[str, Any]) -> Decision[Any]:
        """Book a request on a worker."""
        return self._router.select_worker(**{**request, "among": [key]})

    def _hold(self, name: str, fields: Mapping[str, Any], decision: Decision[Any]) -> None:
        model, group = _text(fields, "model_name", _DEFAULT_MODEL), _text(fields, "routing_group", "default")
        self._reservations[name] = _Reservation(decision, model, group, time.monotonic())

    def _check_free(self, name: str) -> None:
        """Drop what has ended by itself, and refuse an id in use, and more than can be held."""
        latest = time.monotonic() - self._ttl_s
        for held, reservation in list(self._reservations.items()):
            if reservation.since_s > latest:
                break
            reservation.decision.cancel()
            del self._reservations[held]
        if name in self._reservations:
            raise SelectorError(409, f"there is a reservation {name!r} already")
        if len(self._reservations) >= self._most:
            raise SelectorError(503, f"{self._most} reservations are held already")

    def _find(self, name: str) -> Decision[Any]:
        found = self._reservations.get(name)
        if found is None:
            raise SelectorError(404, f"no reservation {name!r}")
        return found.decision

    def _key(self, number: object) -> str:
        found = next((key for key in self._router.keys() if worker_id(key) == number), None)  # noqa: SIM118 - a method
        if found is None:
            raise SelectorError(404, f"no worker {number!r}")
        return found

    def _request(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a request of the selector into arguments of `select_worker`."""
        request: dict[str, Any] = {name: fields[given] for given, name in _ARGUMENTS.items() if given in fields}
        if fields.get("token_ids") is not None:
            request["tokens"] = fields["token_ids"]
        elif fields.get("sequence_hashes") is not None:
            if "isl_tokens" not in fields:
                raise SelectorError(400, "isl_tokens is required with sequence_hashes")
            request["blocks"] = [hash_ & _MASK for hash_ in _integers(fields, "sequence_hashes")]
            request["prompt_tokens"] = fields["isl_tokens"]
        elif fields.get("body") is not None:
            request["body"] = encode_body(_object(fields, "body"))
            request["path"] = _text(fields, "path", "/v1/chat/completions")
        else:
            raise SelectorError(400, "one of token_ids, sequence_hashes and body is required")
        model = _text(fields, "model_name", _DEFAULT_MODEL)
        if model != _DEFAULT_MODEL:
            request["model"] = model
        session = _object(fields, "session_context").get("session_id") if fields.get("session_context") else None
        if session is not None:
            request["session"] = session
        if fields.get("allowed_worker_ids") is not None:
            request["among"] = [self._key(number) for number in _integers(fields, "allowed_worker_ids")]
        if fields.get("pinned_worker") is not None:
            request["among"] = [self._key(_object(fields, "pinned_worker").get("worker_id"))]
        return request

    def _shape(self, fields: Mapping[str, Any], decision: Decision[Any], name: str | None) -> dict[str, Any]:
        """Describe a decision."""
        matched, rank = decision.matched_tokens, decision.dp_rank or 0
        overlap = {"longest_matched": matched, "gpu": matched, "dp": {str(rank): matched}}
        shape = {
            "model_name": _text(fields, "model_name", _DEFAULT_MODEL),
            "routing_group": _text(fields, "routing_group", "default"),
            "worker_id": worker_id(decision.key),
            "dp_rank": rank,
            "endpoint": decision.key,
            "block_size": self._block_size,
            "overlap": {**overlap, "cpu": matched, "disk": matched},
            "isl_tokens": decision.prompt_tokens,
            "effective_prefill_tokens": max(0, decision.prompt_tokens - matched),
            "reason": decision.reason,
        }
        return shape if name is None else {"selection_id": name, **shape}


_ARGUMENTS: Final = {
    "lora_name": "lora",
    "cache_salt": "cache_salt",
    "expected_output_tokens": "expected_output_tokens",
    "session_id": "session",
    "strict_priority": "priority",
}
_RESERVED: Final = ("selection_id", "model_name", "routing_group", "worker_id", "dp_rank", "endpoint")


def _selection_id(fields: Mapping[str, Any]) -> str | None:
    found = fields.get("selection_id")
    if found is None:
        return None
    if not isinstance(found, str) or not 0 < len(found) <= _ID_LENGTH:
        raise SelectorError(400, f"selection_id must be a text of at most {_ID_LENGTH} characters")
    return found


def _text(fields: Mapping[str, Any], name: str, default: str) -> str:
    found = fields.get(name, default)
    if not isinstance(found, str):
        raise SelectorError(400, f"{name} must be a text")
    return found


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = fields[name]
    if not isinstance(found, Mapping):
        raise SelectorError(400, f"{name} must be an object")
    return found


def _integers(fields: Mapping[str, Any], name: str) -> list[int]:
    found = fields[name]
    if not isinstance(found, list) or not all(type(each) is int and abs(each) <= sys.maxsize * 2 + 1 for each in found):
        raise SelectorError(400, f"{name} must be a list of integers")
    return found
