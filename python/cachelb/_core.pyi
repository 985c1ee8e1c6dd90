"""Native core of cachelb."""

from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import GenericAlias, TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Buffer, disjoint_base

from cachelb.answers import Usage
from cachelb.bodies import Headers, MatchBasis
from cachelb.events.sink import RouterEvents
from cachelb.explanation import Explanation
from cachelb.peers import KvSource
from cachelb.sources.base import LoadSink
from cachelb.tracking import TrackedIterator, TrackedStream
from cachelb.types import Outcome, PolicyArguments, Reason, RequestArguments, Reservation, Tokens

__all__ = [
    "AdmissionGate",
    "BlockTracker",
    "Decision",
    "FleetView",
    "GroupedEngineCache",
    "HeldRequest",
    "LearnedModel",
    "Match",
    "Namespace",
    "NativeEndpointPicker",
    "NativeGateway",
    "Policy",
    "PolledEvents",
    "PrefixMatch",
    "RadixTree",
    "RequestView",
    "Router",
    "RouterFleet",
    "SimWorkload",
    "SnapshotPieces",
    "check_worker",
    "decode_kv_events",
    "fork_gate",
    "hash_blocks",
    "hash_text",
    "message_ends",
    "message_origin",
    "policy_table",
    "read_body",
    "simulate",
    "worker_name",
]

_T = TypeVar("_T")
_W = TypeVar("_W")

@final
class Decision(Generic[_W]):
    """The chosen worker and its booked load. Every method may be called repeatedly and from any thread.

    Example:
        >>> from cachelb import Router
        >>> router = Router(["gpu0", "gpu1"])
        >>> decision = router.select_worker(tokens=range(64))
        >>> decision.reason, decision.prompt_tokens, decision.matched_tokens
        ('cold', 64, 0)
        >>> decision.on_first_token()
        >>> decision.on_complete(cached_tokens=0)
        >>> router.select_worker(tokens=range(64)).worker == decision.worker
        True
    """

    @classmethod
    def __class_getitem__(cls, key: object) -> GenericAlias: ...
    @property
    def worker(self) -> _W:
        """The caller's own object."""
    @property
    def key(self) -> str:
        """Key of the worker."""
    @property
    def id(self) -> str:
        """Identifier of this decision, unique within the process."""
    @property
    def dp_rank(self) -> int | None:
        """Data-parallel rank, or None if the worker has one rank."""
    @property
    def reason(self) -> Reason:
        """Why this worker."""
    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, 0 if unknown."""
    @property
    def matched_tokens(self) -> int:
        """Prompt tokens the worker is expected to have in its cache."""
    @property
    def match_basis(self) -> MatchBasis:
        """Basis of `matched_tokens`.

        "tokens" are token ids or block hashes; "certain" is text that engines render alike whatever their template;
        "learned" and "likely" are layouts of a chat (`RequestBodies`), the first confirmed by the cached tokens that
        engines report. Only the first two may serve a claim that no engine verifies.
        """
    @property
    def best_matched_tokens(self) -> int:
        """`matched_tokens` of the candidate that holds most."""
    @property
    def cached_tokens(self) -> int | None:
        """Cached tokens the engine reported with `on_complete`, or None."""
    @property
    def headers(self) -> Mapping[str, str]:
        """Headers for the request to the worker; clients should get none that names it.

        They hold the worker's key, the decision's id, reason and matched tokens, and `x-data-parallel-rank` if a rank
        was picked.
        """
    @property
    def kv_source(self) -> KvSource | None:
        """The peer to copy further tokens from, if that is sooner than to compute them (`Router.peer_groups`)."""
    @property
    def is_open(self) -> bool:
        """Whether the request has not ended yet."""
    def on_first_token(self) -> None:
        """Report the first output token: the worker's prefill load ends, its decode load begins."""
    def on_tokens(self, n: int) -> None:
        """Report `n` more output tokens.

        Raises:
            TypeError: `n` is not an int.
            ValueError: `n` is negative.
        """
    def on_complete(
        self,
        *,
        cached_tokens: int | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        output_ids: Tokens | None = None,
    ) -> None:
        """Report that the request finished, which releases its load.

        Args:
            cached_tokens: Prompt tokens the engine took from its cache, as it reports them.
            prompt_tokens: Prompt tokens the engine counted.
            output_tokens: Output tokens the engine counted; if None, as many as `output_ids`.
            output_ids: The output tokens themselves. A worker without KV events is known to hold them from then on,
                behind the prompt, if that was given as `tokens=`, which is read again.

        Reports of engines are checked: a count that is no whole number from 0 to 2^40, and ids that cannot be read, are
        left out and counted (`RouterStats.unread_usage`).

        Example:
            >>> from cachelb import Router
            >>> router = Router(["http://gpu0:8000"])
            >>> decision = router.select_worker(tokens=list(range(40)))
            >>> decision.on_complete(output_ids=[7] * 25)
            >>> router.select_worker(tokens=[*range(40), *[7] * 25, 1, 2, 3]).matched_tokens
            64
        """
    def on_response(self, response_id: str) -> None:
        """Report the id of a response that the worker stores, before `on_complete`; `track` does it by itself.

        A request with that `previous_response_id` goes to the same worker, the only one that can answer it. Nothing
        happens for requests that were not selected with `body=` and the path of the responses API.

        Args:
            response_id: As in the answer. An empty one, or one of more than 256 bytes, counts as unread usage.
        """
    @property
    def _stores_response(self) -> bool: ...
    def on_error(self, error_or_status: BaseException | int, *, retry_after_s: float | None = None) -> Outcome:
        """Report that the request failed, which releases its load.

        An exception counts by its status, or that of its `response`, if it has one. Without, it is a failure of the
        worker if a transport raised it: an `OSError`, which timeouts are, and what HTTP clients and gRPC raise, or an
        exception raised `from` one. Every other one is an error of your own code, and cancels the request.

        Args:
            error_or_status: The exception, or the HTTP status.
            retry_after_s: How long a worker that answered 429 or 503 asked to be left alone, at most a minute; see
                `cachelb.answers.retry_after`. None reads it from the exception's `response`, else it is half a second.

        Returns:
            "client" for 4xx, "backpressure" for 429 and 503, "failed" for 5xx and transports, else "cancelled".

        Raises:
            TypeError: Neither an exception nor an int, or `retry_after_s` is no number.
            ValueError: A status below 400 or above 999, or `retry_after_s` is negative.
        """
    def _unread(self) -> None: ...
    def cancel(self) -> None:
        """Report that the request was given up, which releases its load."""
    def retry(self) -> Decision[_W]:
        """Book another worker, none of those tried so far, and release this one.

        The workers and tokens given to `select_worker` are read again. It may follow `on_error`; without, the request
        counts as failed.

        Raises:
            NoWorkerAvailable: Every worker was tried or is not ready, and the reasons name what came of each; this
                decision is released all the same.
            ValueError: The request was completed, cancelled or retried before. Nothing is booked.
        """
    def track(
        self,
        items: AsyncIterable[_T],
        *,
        tokens_of: Callable[[_T], int] | None = None,
        usage_of: Callable[[Sequence[_T]], Usage | None] | None = None,
    ) -> TrackedStream[_T]:
        """Iterate over the parts of an answer, and report from them what happens to the request.

        The first item is the first token, every further one so many more. The end completes the request, an exception
        of `items` fails it, and giving up in any way, even before the first item, cancels it. `items` is closed once in
        every case.

        Args:
            items: The parts of the answer.
            tokens_of: Counts the tokens of an item; without it every item is one.
            usage_of: Reads what the engine counted from the last few items, such as
                `lambda items: cachelb.answers.read_usage(b"".join(items))`.

        Returns:
            An asynchronous iterator over the same items, with `aclose()`.

        Raises:
            TypeError: `items` is not an asynchronous iterable.
        """
    def track_sync(
        self,
        items: Iterable[_T],
        *,
        tokens_of: Callable[[_T], int] | None = None,
        usage_of: Callable[[Sequence[_T]], Usage | None] | None = None,
    ) -> TrackedIterator[_T]:
        """Do the same for an iterator that is not asynchronous.

        Args:
            items: The parts of the answer.
            tokens_of: Counts the tokens of an item; without it every item is one.
            usage_of: Reads what the engine counted from the last few items.

        Returns:
            An iterator over the same items, with `close()`.

        Raises:
            TypeError: `items` is not iterable.
        """
    def reservation(self) -> Reservation:
        """Return what another router needs to book the same request with `Router.reserve`.

        The prompt is read again; keep its tokens unchanged until then.

        Example:
            >>> from cachelb import Router
            >>> router, peer = Router(["gpu0", "gpu1"], hash_seed=1), Router(["gpu0", "gpu1"], hash_seed=1)
            >>> decision = router.select_worker(tokens=range(40))
            >>> found = decision.reservation()
            >>> len(found["sequence_hashes"]), found["isl_tokens"], found["track_prefill_tokens"]
            (2, 40, True)
            >>> copy = peer.reserve(decision.key, blocks=found["sequence_hashes"], prompt_tokens=found["isl_tokens"])
            >>> peer.loads() == router.loads()
            True
        """
    def explain(self) -> Explanation:
        """Return the state of every worker of the list when this one was picked."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool: ...

@final
class RequestView:
    """A request as far as routing goes, without the contents of its prompt and session.

    Example:
        >>> from cachelb import Router
        >>> class LongOnesFirst:
        ...     name, needs = "long-ones-first", frozenset({"prompt_tokens"})
        ...
        ...     def choose(self, request, fleet):
        ...         return 0 if request.prompt_tokens > 1000 else len(fleet) - 1
        >>> router = Router(["big", "small"], policy=LongOnesFirst())
        >>> router.select_worker(prompt_tokens=5000).worker, router.select_worker(prompt_tokens=50).worker
        ('big', 'small')
    """

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, 0 if unknown."""
    @property
    def total_blocks(self) -> int:
        """Full blocks of the prompt."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def has_tokens(self) -> bool:
        """Whether the prompt itself was given, not only its length."""
    @property
    def session(self) -> int | None:
        """Hash of the session's key, or None. Routers with equal `hash_seed` agree on it."""
    @property
    def key(self) -> int | None:
        """Hash of the session's key; without one, of the prompt's head if the policy needs "session"; else None."""
    @property
    def tenant(self) -> str | None:
        """Tenant of the request."""
    @property
    def priority(self) -> int:
        """Higher is served first where requests wait."""
    @property
    def model(self) -> str | None:
        """Name of the model."""
    @property
    def lora(self) -> str | None:
        """Name of the adapter."""
    @property
    def max_output_tokens(self) -> int | None:
        """Output tokens at most."""
    @property
    def expected_output_tokens(self) -> int | None:
        """Output tokens to expect."""
    @property
    def attempt(self) -> int:
        """How often this request was tried before."""
    @property
    def dry_run(self) -> bool:
        """Whether nothing will be booked. A policy with state must not change it then."""
    def random(self) -> float:
        """Draw a number in [0, 1) from the router's generator: equal seeds and calls give equal draws."""
    def randrange(self, n: int) -> int:
        """Draw a number from 0 to `n` - 1 from the same generator.

        Raises:
            TypeError: `n` is not an int.
            ValueError: `n` is below 1 or over 4294967295.
        """

@final
class FleetView:
    """The candidates of one request, as columns: cell `i` of each belongs to candidate `i`.

    Counts are int64, all else is float64:

    - `overlap_blocks`: leading blocks of the request the worker holds.
    - `matched_tokens`, `uncached_tokens`: prompt tokens it need not, and has to, compute.
    - `inflight`: requests booked and not finished, and those of others that a fresh report counts beyond them.
    - `pending_prefill_tokens`: uncached prompt tokens of those without a first token.
    - `decode_blocks`: blocks of those past their first token.
    - `dispatched_tokens`: uncached prompt tokens booked since the latest report.
    - `weight`: relative capacity, slow start included.
    - `last_cold_pick`: logical time of the last pick with reason `cold`, 0 for never.
    - `running`, `waiting`, `queued_tokens`, `kv_usage`, `prefill_tps`, `gen_tps`: the engine's report, NaN if unknown
      or too old.
    - `report_age_s`: age of that report in seconds, however old, NaN without one.
    - `observed_prefill_tps`: prompt tokens per second as seen from here, NaN if unknown.
    - `dp_rank`: data-parallel rank, -1 for a worker that has one.

    Example:
        >>> from cachelb import Router
        >>> class Emptiest:
        ...     name, needs = "emptiest", frozenset()
        ...
        ...     def choose(self, request, fleet):
        ...         return int(fleet.column("kv_usage").argmin())
        >>> router = Router(["gpu0", "gpu1"], policy=Emptiest())
        >>> router.load_sink.update_load("gpu0", kv_usage=0.9)
        >>> router.load_sink.update_load("gpu1", kv_usage=0.2)
        >>> router.select_worker(by_load=True).worker
        'gpu1'
    """

    COLUMNS: ClassVar[tuple[str, ...]]
    """Names of the columns."""

    def column(self, name: str) -> NDArray[Any]:
        """Give a column as a read-only array on the view's own memory; it stays valid as long as it is referenced.

        Args:
            name: Name of the column.

        Returns:
            One cell per candidate.

        Raises:
            KeyError: There is no such column; the message has the nearest name.
        """
    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the workers; one with several ranks occurs once per rank."""
    @property
    def gpu(self) -> tuple[str | None, ...]:
        """Names of the workers' GPU models, None where none was named."""
    def __len__(self) -> int: ...

def policy_table() -> list[dict[str, Any]]:
    """The policies that ship with the library: name, class, text, needs, aliases, and their options."""

@disjoint_base
class Policy:
    """Native half of a policy: workers, loads, block index and rule."""

    def __new__(
        cls,
        rule: str,
        options: dict[str, Any],
        *,
        key: Callable[[Any], str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Self: ...
    def select_worker(
        self, workers: Iterable[_W], *, dry_run: bool = False, **request: Unpack[PolicyArguments]
    ) -> Decision[_W]:
        """Pick a worker, book its load and record the placement, in one step.

        One of `tokens`, `text`, `messages` and `blocks` describes the prompt.

        Args:
            workers: Your workers, in any order; each key once.
            tokens: Token ids of the prompt: a buffer of uint32 costs nothing to read, a list of int 1.5 ns a token.
            text: The prompt as text. Its token counts are estimates: 4 bytes a token, until engines count.
            messages: The prompt as chat messages, read with the default `RequestBodies`.
            blocks: Chained hashes of the prompt's full blocks, as `hash_blocks` returns them with the policy's block
                size and `hash_seed`.
            boundaries: Where the prompt's messages end, for policies that learn there: in tokens, or in characters of
                `text`; they must rise.
            prompt_tokens: Length of the prompt, for `blocks` or if there are no tokens.
            session: Key of the conversation.
            lora: Adapter name; caches of different adapters never match.
            cache_salt: Salt; caches of different salts never match.
            among: Workers or keys to choose from; unknown ones are ignored. None means all.
            exclude: Workers or keys to leave out.
            by_load: Pick by load if there is no prompt, which is an error otherwise. Policies that need a `session` or
                `prompt_tokens` take these in its place.
            dry_run: Return the next pick, and change nothing.

        Returns:
            The decision, which owns the booked load.

        Raises:
            NoWorkerAvailable: The list is empty or no worker in it may be picked.
            TypeError: An argument or a worker has the wrong type, there is no prompt, or it is given twice.
            ValueError: An argument is out of range, or two workers have the same key.
        """
    def _learned(self) -> list[dict[str, Any]]: ...
    def _learned_model(self) -> bytes | None: ...
    def set_ready(self, worker: object, ready: bool) -> None:
        """Mark a worker (or key) ready or not; what it holds stays known."""
    def set_weight(self, worker: object, weight: float) -> None:
        """Set the relative capacity of a worker (or key), 1 by default.

        Raises:
            ValueError: The weight is not finite or not above 0.
        """
    def update_load(
        self,
        worker: object,
        *,
        kv_usage: float | None = None,
        queued_tokens: float | None = None,
        prefill_tps: float | None = None,
    ) -> None:
        """Replace what the engine of a worker (or key) reports about itself; None means unknown.

        Args:
            worker: The worker or its key.
            kv_usage: Fraction of the KV cache in use, 0 to 1.
            queued_tokens: Prompt tokens waiting to be computed.
            prefill_tps: Prompt tokens computed per second.

        Raises:
            ValueError: A value is NaN, infinite or out of range.
        """
    def remove_worker(self, worker: object) -> bool:
        """Forget a worker (or key), its blocks and its load; returns whether it was known."""
    def finish_session(self, session: str) -> bool:
        """Forget which worker a session is bound to.

        Args:
            session: The session, as `select_worker` takes it.

        Returns:
            Whether the policy is a session policy that had bound it.
        """
    def loads(self) -> dict[str, int]:
        """Requests in flight by worker key."""
    def block_count(self, worker: object = None) -> int:
        """Distinct blocks recorded, for one worker (or key) or for all."""
    @property
    def memory_bytes(self) -> int:
        """Bytes of native memory in use."""
    @property
    def abandoned(self) -> int:
        """Decisions dropped without being ended."""
    def stats(self) -> dict[str, int]:
        """Counts since the policy was made."""
    def validate(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An internal invariant is broken.
        """

@disjoint_base
class Router(Generic[_W]):
    """Native half of the router: fleet, loads, block indexes and rules."""

    @property
    def _fleet(self) -> RouterFleet: ...
    def _body_counts(self) -> dict[str, Any]: ...
    def __new__(
        cls,
        pools: list[dict[str, Any]],
        settings: dict[str, Any],
        *,
        customs: dict[str, Any] | None = None,
        key: Callable[[Any], str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Self: ...
    @classmethod
    def __class_getitem__(cls, key: object) -> GenericAlias: ...
    def select_worker(self, *, dry_run: bool = False, **request: Unpack[RequestArguments]) -> Decision[_W]:
        """Pick a worker, book its load and record the placement, in one step.

        One of `tokens`, `text`, `messages`, `blocks` and `body` describes the prompt.

        Args:
            tokens: Token ids: a buffer of uint32 costs nothing to read, a list of int 1.5 ns a token.
            text: The prompt as text. Its token counts are estimates: 4 bytes a token, until engines count.
            messages: The prompt as chat messages: the same prompt as that of a chat's `body` with them.
            blocks: Chained hashes of the prompt's full blocks, as `hash_blocks` returns them.
            body: The request's body, as it came: what the other arguments leave out is read from it.
            path: Path of the request, which decides the kind of the body.
            headers: The request's headers, as a mapping or pairs of str or bytes, for the session and the priority.
            boundaries: Where the prompt's messages end, for policies that learn there: in tokens, or in characters of
                `text`; they must rise. Those of `messages` are known. `cachelb.boundaries` finds those of tokens.
            prompt_tokens: Length of the prompt, for all but `tokens`.
            model: Name of the model.
            lora: Adapter name; caches of different adapters never match.
            cache_salt: Salt; caches of different salts never match.
            mm: Multimodal objects as (hash, first token, number of tokens).
            session: Key of the conversation.
            tenant: Tenant of the request, for policies of your own.
            priority: Higher is served first where requests wait.
            max_output_tokens: Output tokens at most.
            expected_output_tokens: Output tokens to expect.
            cache_ttl_s: Seconds after its last use that the worker keeps the prompt cached, as providers of models do;
                workers with KV events announce it themselves. None is as long as the policy's `ttl_s`, which limits it.
            among: Workers or keys to choose from; unknown ones are ignored. None means all.
            exclude: Workers or keys to leave out.
            by_load: Pick by load if there is no prompt, which is an error otherwise. Policies that need a `session` or
                `prompt_tokens` take these in its place.
            dry_run: Return the next pick, and change nothing.

        Returns:
            The decision, which owns the booked load.

        Raises:
            BodyError: The body is no JSON object, and `RequestBodies.strict` is set.
            NoWorkerAvailable: No worker may be picked; the error has the reason per worker.
            TypeError: An argument has the wrong type, there is no prompt, or it is given twice.
            ValueError: An argument is out of range.
        """
    def _reserve(self, worker: _W | str, track_prefill_tokens: bool, **arguments: object) -> Decision[_W]: ...
    def _select_pair(
        self, *, dry_run: bool = False, **arguments: object
    ) -> tuple[Decision[_W] | None, Decision[_W]]: ...
    def _retry_pair(
        self, failed: Decision[_W], other: Decision[_W] | None
    ) -> tuple[Decision[_W] | None, Decision[_W]]: ...
    def _select_batch(
        self,
        requests: list[dict[str, object]],
        *,
        max_per_worker: int | None = None,
        min_colocate_blocks: int | None = None,
    ) -> list[Decision[_W]]: ...
    def _explain(self, **arguments: object) -> Explanation: ...
    def remove_worker(self, worker: _W | str, *, drain: bool = False) -> bool:
        """Take a worker out of the fleet.

        Args:
            worker: The worker or its key.
            drain: Let its requests finish; it takes no new ones and leaves with the last. Otherwise it is forgotten at
                once, with its blocks and its load.

        Returns:
            Whether it was registered.
        """
    def set_ready(self, worker: _W | str, ready: bool) -> None:
        """Mark a worker ready or not. Its cached prefixes and its requests stay known.

        Args:
            worker: The worker or its key.
            ready: Whether it takes requests.

        Raises:
            UnknownWorkerError: It is not registered.
        """
    def finish_session(self, session: str) -> bool:
        """Forget which workers a session is bound to, in every model and role.

        Args:
            session: The session, as `select_worker` takes it.

        Returns:
            Whether a session policy had bound it.
        """
    def keys(self) -> list[str]:
        """Keys of the registered workers, in order of registration."""
    def workers(self) -> list[_W]:
        """The registered workers, in order of registration."""
    def loads(self) -> dict[str, int]:
        """Requests in flight by worker key; of a worker with ranks, by `key#rank`."""
    def validate(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An internal invariant is broken.
        """
    def _use(self) -> None: ...

@final
class RouterFleet(RouterEvents, LoadSink):  # type: ignore[misc]  # the native class implements both
    """The workers and models of a router, their events, what it shares and keeps, and its counters."""

    def add(self, worker: object, options: dict[str, Any] | None = None, *, name: str | None = None) -> bool: ...
    def add_pool(self, spec: dict[str, Any]) -> None: ...
    def models(self) -> list[str]: ...
    def replace_object(self, key: str, worker: object) -> None: ...
    def named(self, workers: Iterable[_T]) -> tuple[list[_T], list[str]]: ...
    def add_shared_cache(self, options: dict[str, Any]) -> None: ...
    def remove_shared_cache(self, name: str) -> bool: ...
    def add_peer_group(self, options: dict[str, Any]) -> None: ...
    def remove_peer_group(self, name: str) -> bool: ...
    def peer_groups(self) -> list[str]: ...
    def shared_caches(self) -> list[tuple[str, int]]: ...
    def after_fork(self, *, anew: bool = False) -> int | None: ...
    def event_rows(self) -> list[tuple[str, int | None, dict[str, Any]]]: ...
    def event_totals(self) -> dict[str, Any]: ...
    def share(self, origin: int, ttl_s: float, max_bytes: int, *, share_fleet: bool = False) -> list[str]: ...
    def changes(self) -> list[tuple[str, list[str]]]: ...
    def follow(self, key: str) -> None: ...
    def unshare(self) -> None: ...
    def publish(self) -> list[bytes]: ...
    def is_urgent(self) -> bool: ...
    def publish_all(self) -> list[bytes]: ...
    def heartbeat(self, sent_us: int) -> bytes | None: ...
    def receive(self, message: bytes) -> str: ...
    def forget_origin(self, origin: int) -> int: ...
    def sharing_counts(self) -> tuple[dict[int, int], dict[str, int]]: ...
    def keep(self, kept_ms: int) -> SnapshotPieces: ...
    def kept_ms(self, data: Buffer) -> int: ...
    def restore(self, data: Buffer, ttl_s: float) -> dict[str, int]: ...
    def counters(self) -> dict[str, Any]: ...
    def learned(self) -> list[dict[str, Any]]: ...
    def learned_model(self, model: str | None = None, part: str = "whole") -> bytes | None: ...
    def worker_rows(self) -> list[dict[str, Any]]: ...
    def records_since(self, cursor: int, limit: int) -> tuple[list[dict[str, Any]], int, int]: ...
    def start_capture(self, key: Sequence[int], max_bytes: int) -> None: ...
    def captured(self) -> tuple[list[tuple[str, int, int, int | None, int | None, bytes]], int]: ...
    def stop_capture(self) -> None: ...
    def cache_sizes(self) -> list[tuple[str, int | None, str | None, int | None]]: ...

@final
class AdmissionGate(Generic[_W]):
    """Admits requests to workers or holds them, by the bookings of a router."""

    def __new__(cls, router: Router[_W], settings: dict[str, Any]) -> Self: ...
    def select_now(self, is_preview: bool, /, **arguments: object) -> Decision[_W]: ...
    def enter(
        self,
        call: Callable[[], object],
        caller: int,
        how: tuple[float | None, bool, bool, bool],
        /,
        **arguments: object,
    ) -> object: ...  # a HeldRequest, a decision, or both of a pair
    def __class_getitem__(cls, key: object) -> GenericAlias: ...
    def before(self, priority: int) -> tuple[int, int, float]: ...
    def bands(self) -> list[dict[str, Any]]: ...
    def waiting(self) -> tuple[int, int]: ...
    def look_again(self) -> None: ...
    def close(self) -> None: ...

@final
class HeldRequest(Generic[_W]):
    """A request that waits at a gate. It leaves with the last reference to it."""

    @property
    def again_s(self) -> float | None: ...
    def try_again(self, is_last: bool) -> object: ...  # a decision, both of a pair, or None
    def __class_getitem__(cls, key: object) -> GenericAlias: ...
    def give_up(self) -> None: ...

@final
class NativeEndpointPicker:
    """The server of `cachelb_gateway.ext_proc.EndpointPicker`, which documents its options."""

    def __new__(
        cls,
        router: Router[Any],
        options: Mapping[str, Any],
        *,
        address: Callable[[Any], str] | None = None,
    ) -> NativeEndpointPicker: ...
    def start(
        self,
        listen: str,
        *,
        ready: bool = True,
        health_listen: str | None = None,
        certificate: tuple[bytes, bytes, bytes | None, str] | None = None,
    ) -> tuple[int, int | None]: ...
    def stop(self, grace_s: float) -> None: ...
    def set_ready(self, ready: bool) -> None: ...
    def reload_certificate(self, certificate: tuple[bytes, bytes, bytes | None, str]) -> bool: ...
    @property
    def counts(self) -> dict[str, int]: ...
    @property
    def open_streams(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...

@final
class NativeGateway:
    """The server of `cachelb_gateway.serve.Gateway`, which documents its options.

    A function makes the pages of the address for operators: `answer(method, path, body)` returns status, content type
    and body, or, for a page of lines, a function of `is_over` that returns the next part, None at its end.
    """

    bounds_s: ClassVar[list[float]]
    def __new__(cls, router: Router[Any], options: Mapping[str, Any], /) -> NativeGateway: ...
    def start(
        self,
        listen: Sequence[tuple[str, tuple[bytes, bytes, bytes | None, str] | None]],
        admin: tuple[str, Callable[[str, str, bytes], object], str | None] | None = None,
        /,
    ) -> tuple[list[str], str | None]: ...
    def stop(self, drain_s: float, grace_s: float, /) -> None: ...
    def reload_certificate(self, certificate: tuple[bytes, bytes, bytes | None, str]) -> bool: ...
    def series(
        self,
    ) -> list[tuple[str, str, dict[int, int], tuple[list[int], float], tuple[list[int], float], int, int]]: ...
    @property
    def counts(self) -> dict[str, int]: ...
    @property
    def open_requests(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...

def check_worker(worker: str) -> str | None:
    """Why a worker's key is no URL that a gateway can forward to, None if it is one."""

def fork_gate(moment: str) -> None: ...

@final
class SnapshotPieces:
    """A snapshot of a router, written as it is read."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> bytes: ...

def worker_name(text: str) -> str:
    """Name of a worker with key `text`: without credentials, and without the slash at the end of a URL."""

def message_origin(message: bytes) -> tuple[int, int | None]:
    """Return the sender of a message of shared state, and the time of a heartbeat in microseconds of its clock."""

@final
class Namespace:
    """Separates the prompts of one adapter or cache salt from all others.

    Prompts match only within their namespace. An empty string counts as absent.

    Example:
        >>> from cachelb.index import Namespace
        >>> Namespace("adapter-a") == Namespace("adapter-b")
        False
        >>> Namespace("adapter-a", salt="secret")
        Namespace('adapter-a', salt=...)
    """

    def __new__(cls, lora: str | None = None, *, salt: str | None = None) -> Self:
        """Make a namespace.

        Args:
            lora: Name of the LoRA adapter.
            salt: Cache salt or tenant, never shown again.
        """
    @property
    def lora(self) -> str | None:
        """Name of the LoRA adapter, or None."""

def decode_kv_events(payload: Buffer, /) -> tuple[float, int | None, list[dict[str, Any]]]:
    """Decode a message of KV events.

    Messages of all versions of vLLM, of SGLang and of TensorRT-LLM come out in one form. An event is a dict with a
    `type`:

    * `BlockStored`: `block_hashes`, `parent_block_hash` (None at the start of a prompt), `token_ids`, `block_size`,
      `medium`, `lora_name` (`lora_id=7` from an engine that only numbers its adapters), `cache_salt` (of a store at
      the start of a prompt), `extras` (pairs of a block's position and the hash of an image, or of anything else, that
      the block is made of beside its tokens), `group_idx` and `attention` ("full" for a group that attends to the whole
      prefix, "partial" for any other).
    * `BlockRemoved`: `block_hashes`, `medium`, `group_idx`.
    * `AllBlocksCleared`.
    * `Unknown` and `Malformed`, behind the others: the `count` of events that were passed over, because their
      type is unknown or a value makes no sense.

    A hash is an int from 0 to 2^64 - 1 (a signed one by its bits), or the hex digits of the XXH3-128 of one given as
    bytes. A medium is "gpu", "cpu", "disk", "shared" for a pool that workers share, or "unknown". Fields
    that an event lacks are None.

    Args:
        payload: The last frame of a message: a msgpack array of time, events and perhaps rank.

    Returns:
        Wall-clock seconds at which the engine made the message, its data-parallel rank if it has one, and the events.

    Raises:
        TypeError: `payload` is not bytes.
        ValueError: It is not well-formed msgpack, or no batch of events; the message names the fault and its place.

    Example:
        >>> from cachelb import _core
        >>> _core.decode_kv_events(bytes.fromhex("93cb3ff800000000000091 92ac426c6f636b52656d6f766564 9107 00"))
        (1.5, 0, [{'type': 'BlockRemoved', 'block_hashes': [7], 'medium': None, 'group_idx': None}])
    """

@final
class PolledEvents:
    """The polled KV cache events of one TensorRT-LLM worker, as messages of the form that other engines publish.

    Events have numbers within a rank; a hole in them becomes one in the numbers of messages, and an engine that starts
    over begins with message 0 again. Partial blocks are left out. The largest window is that of full attention.

    Args:
        ranks: Data-parallel ranks of the worker.
        block_size: Tokens per block of the engine; by default that of the first block that another follows.
        verify: Whether a block is taken to have no adapter and no salt only if its hash shows that.

    Example:
        >>> from cachelb import _core
        >>> token = '{"token_id": 5, "token_extra_id": 0}'
        >>> block = f'{{"block_hash": 9, "tokens": [{token}], "cache_level": 0}}'
        >>> data = f'{{"type": "stored", "parent_hash": null, "blocks": [{block}]}}'
        >>> answer = f'[{{"event_id": 0, "window_size": 4096, "data": {data}}}]'
        >>> polled = _core.PolledEvents(block_size=1)
        >>> [(rank, seq, payload)] = polled.take(answer.encode(), now_s=1.5)
        >>> rank, seq, _core.decode_kv_events(payload)[2][0]["token_ids"]
        (None, 0, [5])
    """

    def __new__(cls, *, ranks: int = 1, block_size: int | None = None, verify: bool = True) -> Self: ...
    def take(self, answer: Buffer, /, *, now_s: float) -> list[tuple[int | None, int, bytes]]:
        """Read the answer of a poll; return rank (None where events name none), number and bytes per message.

        Args:
            answer: A JSON array of events.
            now_s: Wall-clock seconds.

        Raises:
            TypeError: `answer` is not bytes.
            ValueError: It is no JSON array; the message names the fault and its place.
        """

    @property
    def foreign(self) -> int:
        """Events of ranks that the worker does not have, which were dropped."""

def hash_blocks(
    tokens: Tokens,
    block_size: int = 16,
    *,
    namespace: str | Namespace | None = None,
    scheme: str = "chained",
    seed: int | None = None,
    mm: Iterable[tuple[int, int, int]] | None = None,
    secret: str | Sequence[str] | None = None,
) -> NDArray[np.uint64]:
    """Hash the full blocks of a prompt.

    A hash names a block and all before it, so equal hashes mean equal prefixes. With seed 1337 they equal the hashes of
    Dynamo. A last block that is not full has no hash.

    Args:
        tokens: Token ids: a buffer of uint32 (numpy, array, memoryview), `bytes` of little-endian uint32, a buffer of
            int32, int64 or uint64, or a sequence of int.
        block_size: Tokens per block, 1 to 1024.
        namespace: Adapter and salt; a `str` is a salt.
        scheme: "chained"; "eagle" for the draft model's windows of one token more; "positional" for the inexact hashes
            that are kept for study.
        seed: Seed of all hashes; instances that share hashes must share it. None is made from `secret`, or 1337.
        mm: Multimodal objects as (hash, first token, number of tokens); blocks that overlap one hash it too.
        secret: That of a router whose `blocks=` these are to be. Without one, namespaces are made by Dynamo's published
            rule: the same everywhere, and easily forged. They separate adapters, but not tenants.

    Returns:
        One hash per full block.

    Raises:
        TypeError: An argument has the wrong type; the message names it.
        ValueError: A token is negative or over 4294967295, the message names its position, or an argument is out of
            range.

    Example:
        >>> from cachelb.index import hash_blocks
        >>> [hex(block) for block in hash_blocks(list(range(33)))]
        ['0xd47a8f41c833328a', '0xbf15dffb16447f38']
    """

def hash_text(
    text: str,
    chunk_bytes: int = 64,
    *,
    namespace: str | Namespace | None = None,
    seed: int | None = None,
    secret: str | Sequence[str] | None = None,
) -> NDArray[np.uint64]:
    """Hash the full chunks of a prompt that comes without tokens.

    A hash names a chunk of UTF-8 bytes and all before it, so equal hashes mean equal beginnings. It never equals a hash
    of tokens. A last chunk that is not full has no hash.

    Args:
        text: The prompt.
        chunk_bytes: Bytes per chunk, 1 to 4096. A chunk may end inside a character.
        namespace: A `Namespace`, a str for a cache salt, or None.
        seed: Seed of the hashes; instances that share hashes must share it. None is made from `secret`, or 1337.
        secret: As for `hash_blocks`.

    Returns:
        A new array of one hash per full chunk.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or the text holds half of a surrogate pair, which UTF-8 cannot hold.

    Example:
        >>> from cachelb.index import hash_text
        >>> one, other = hash_text("What is a KV cache?", 8), hash_text("What is a KV pair?", 8)
        >>> (one == other).tolist()
        [True, False]
    """

def message_ends(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Find where chat messages end in the text that stands for them where there are no tokens.

    Args:
        messages: Messages as in the OpenAI API.

    Returns:
        Rising positions in bytes, the last of which is the length of the text.

    Raises:
        BodyError: They are more, longer or nested deeper than a body may be.
        TypeError: Messages are not a list, an item is not a mapping, or a value is of a type that JSON does not know.
        ValueError: A number is not finite, or something contains itself.

    Example:
        >>> from cachelb._core import message_ends
        >>> message_ends([{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi!"}])
        [13, 28]
    """

def read_body(settings: Mapping[str, Any], body: Buffer, path: str, headers: Headers) -> dict[str, Any]:
    """Read a body as a router with these settings does, for `cachelb_lab.descriptions.describe_body`.

    Args:
        settings: The fields of `RequestBodies`.
        body: The body.
        path: The path of the request.
        headers: Its headers.

    Returns:
        Figures, the prompt, and where the parts of it lie.

    Raises:
        BodyError: The body cannot be read.
        TypeError: An argument has the wrong type.
        ValueError: A setting is out of range.

    Example:
        >>> from dataclasses import asdict
        >>> import cachelb
        >>> from cachelb._core import read_body
        >>> read_body(asdict(cachelb.RequestBodies()), b'{"prompt": "Hello!"}', "/v1/completions", {})["prompt"]
        b'Hello!'
    """

@final
class LearnedModel:
    """A trained predictor of what a request costs on a worker. It never changes, so threads may share it.

    Example:
        >>> import numpy as np
        >>> from cachelb.learned import FEATURES, LearnedModel
        >>> rng = np.random.default_rng(1)
        >>> features = rng.random((2000, len(FEATURES)), np.float32)
        >>> model = LearnedModel.fit(features, None, features[:, 0] * features[:, 1], seed=1)
        >>> model.errors["rmse"] < 0.5 * model.errors["mean_rmse"]
        True
        >>> LearnedModel.from_bytes(model.to_bytes()).predict(features[:3]).shape
        (3,)
    """

    @classmethod
    def fit(
        cls,
        features: ArrayLike | Mapping[str, ArrayLike],
        gpus: Sequence[str | None] | None,
        costs: ArrayLike,
        *,
        kind: str = "mlp",
        feature_set: str = "extended",
        epochs: int = 20,
        batch: int = 256,
        rate: float = 3e-4,
        weight_decay: float = 1e-5,
        clip: float = 1.0,
        dropout: float = 0.1,
        holdout: float = 0.2,
        seed: int = 0,
        version: int = 1,
    ) -> Self:
        """Train a model; equal samples and seeds give equal models on one machine.

        Args:
            features: One row per sample, columns by `cachelb.learned.FEATURES`, in natural units; or the columns by
                name.
            gpus: Name of each sample's device, None for an unknown one.
            costs: Cost of each sample, lower is better, such as seconds to the first token.
            kind: "mlp", the network of Lodestar; "linear" regression; boosted "trees". The arguments from `epochs` to
                `dropout` are the network's.
            feature_set: "extended" for all columns, "paper" for the first seven.
            epochs: Passes over the samples.
            batch: Samples of a step.
            rate: Learning rate of the first epoch; each later one has 0.95 of the one before.
            weight_decay: Share of a weight that is added to its gradient.
            clip: Largest norm of a gradient.
            dropout: Share of the first two hidden layers that a step leaves out.
            holdout: Share of the samples that are kept to measure `errors`.
            seed: Decides what is held out, the first weights, and the order of the samples.
            version: Number that the model is known by.

        Returns:
            The model.

        Raises:
            ValueError: There are fewer than two samples, a number is not finite, the parts do not fit, or a setting is
                out of range.
            TypeError: Something is not an array of numbers, or not a name.
        """
    def predict(
        self, features: ArrayLike | Mapping[str, ArrayLike], gpus: Sequence[str | None] | None = None
    ) -> NDArray[np.float32]:
        """Predict what each row costs, in the unit of the training.

        Args:
            features: As in `fit`.
            gpus: As in `fit`; a name that the model does not know is like None.

        Returns:
            One cost per row.

        Raises:
            ValueError: The parts do not fit.
            TypeError: Something is not an array of numbers, or not a name.
        """
    def outside(
        self, features: ArrayLike | Mapping[str, ArrayLike], gpus: Sequence[str | None] | None = None
    ) -> list[str | None]:
        """Find the rows outside the range of the training data.

        Args:
            features: As in `fit`.
            gpus: As in `fit`.

        Returns:
            For each row the first column below the smallest or above the largest value seen in training, "gpu" for a
            device that no sample had, None if there is neither.

        Raises:
            ValueError: The parts do not fit.
            TypeError: Something is not an array of numbers, or not a name.
        """
    @property
    def version(self) -> int:
        """Number it was trained under."""
    @property
    def kind(self) -> str:
        """Which predictor it is: "mlp", "linear" or "trees"."""
    @property
    def feature_set(self) -> str:
        """Which columns it sees: "extended" or "paper"."""
    @property
    def gpus(self) -> list[str]:
        """Names of the devices it knows, sorted."""
    @property
    def errors(self) -> dict[str, float]:
        """Errors on what was held out, or on the training itself if nothing was.

        `rmse` and `mae`, the same of predicting the mean as `mean_rmse` and `mean_mae`, and the counts `n_train` and
        `n_holdout`.
        """
    @property
    def normaliser(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each column it sees, by which they are z-scored; 1 for a constant's."""
    def to_bytes(self) -> bytes:
        """Write the model as bytes; equal models give equal bytes."""
    @staticmethod
    def from_bytes(data: bytes) -> LearnedModel:
        """Read what `to_bytes` wrote.

        Args:
            data: The bytes.

        Returns:
            The model.

        Raises:
            SnapshotError: It is something else, damaged, cut off, or of another version.
        """
    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to a file, all of it or nothing.

        Args:
            path: The file.

        Raises:
            OSError: It cannot be written.
        """
    @staticmethod
    def load(path: str | PathLike[str]) -> LearnedModel:
        """Read a file that `save` wrote.

        Args:
            path: The file.

        Returns:
            The model.

        Raises:
            OSError: It cannot be read.
            SnapshotError: It is something else, damaged, cut off, or of another version.
        """

@final
class Match:
    """A worker and how much of a prompt it holds. Unpacks like a tuple.

    Example:
        >>> from cachelb.index import BlockTracker
        >>> tracker = BlockTracker(block_size=2)
        >>> tracker.record_request([1, 2, 3, 4], "gpu0")
        2
        >>> worker, matched, total = tracker.find_best_worker([1, 2, 9, 9, 9, 9])
        >>> worker, matched, total
        ('gpu0', 1, 3)
    """

    __match_args__: ClassVar[tuple[str, str, str]] = ("worker", "matched_blocks", "total_blocks")

    @property
    def worker(self) -> str:
        """Name of the worker."""
    @property
    def matched_blocks(self) -> int:
        """Leading blocks it holds, at least 1."""
    @property
    def total_blocks(self) -> int:
        """Full blocks of the prompt."""
    def __iter__(self) -> Iterator[Any]: ...

@final
class BlockTracker:
    """Tracks which worker holds which leading blocks of a prompt, exactly.

    A worker is registered by its first `record_request` or `store`. Names that are not known are no error: they hold
    nothing. Safe to use from any thread.

    Example:
        >>> from cachelb.index import BlockTracker
        >>> tracker = BlockTracker(block_size=4)
        >>> tracker.record_request(range(12), "gpu0"), tracker.record_request(range(8), "gpu1")
        (3, 2)
        >>> tracker.overlaps(range(12))
        {'gpu0': 3, 'gpu1': 2}
        >>> tracker.find_best_worker(range(16))
        Match(worker='gpu0', matched_blocks=3, total_blocks=4)
    """

    def __new__(
        cls,
        *,
        block_size: int = 16,
        max_blocks_per_worker: int = 100_000,
        hashing: str = "chained",
        matcher: str = "kary",
        seed: int | None = None,
        secret: str | Sequence[str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """Make an empty tracker.

        Args:
            block_size: Tokens per block, as the engines have it, 1 to 1024.
            max_blocks_per_worker: Blocks a worker may hold per medium; the least recently used leaves go first. A
                longer prompt keeps its first blocks.
            hashing: "chained"; "eagle" for a draft model's windows; "positional" is inexact and kept for study: the
                prompts ABBB and ZCCD credit ACCD with 4 blocks where 1 is true. It warns.
            matcher: "kary", "binary" or "linear": how the longest known prefix is searched. The answers are the same.
            seed: Seed of the hashes and of ties. None is made from `secret`, or 1337.
            secret: Keeps namespaces apart that clients choose; without one they are easily forged (`hash_blocks`).
            clock: Monotonic seconds; called only when something has a time to live. The process's own clock if None.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range or not one of the names.
        """
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def max_blocks_per_worker(self) -> int:
        """Blocks a worker may hold per medium."""
    @property
    def hashing(self) -> str:
        """Name of the hashing scheme."""
    @property
    def matcher(self) -> str:
        """Name of the matcher."""
    @property
    def seed(self) -> int:
        """Seed of the hashes and of ties."""
    @property
    def memory_bytes(self) -> int:
        """Heap bytes of the index, about."""
    def record_request(
        self,
        tokens: Tokens,
        worker: str,
        *,
        namespace: str | Namespace | None = None,
        ttl_s: float | None = None,
    ) -> int:
        """Record that a worker serves a prompt and will hold its full blocks.

        The whole path becomes the worker's most recent use.

        Args:
            tokens: Token ids, as for `hash_blocks`.
            worker: Name of the worker, registered if new.
            namespace: Adapter and salt; a `str` is a salt.
            ttl_s: Seconds until the entry ends, None for never.

        Returns:
            The blocks newly tracked for the worker.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A token or `ttl_s` is out of range, or `ttl_s` is given with positional hashing.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker(block_size=2)
            >>> tracker.record_request([1, 2, 3, 4, 5], "gpu0")
            2
            >>> tracker.record_request([1, 2, 8, 9], "gpu0")
            1
        """
    def find_best_worker(
        self,
        tokens: Tokens,
        *,
        among: Iterable[str] | None = None,
        namespace: str | Namespace | None = None,
    ) -> Match | None:
        """Find the worker that holds the most leading blocks. Changes nothing.

        Among several, it is the one with the smallest hash of seed, last sequence hash and name: different prompts
        spread, equal prompts stay.

        Args:
            tokens: Token ids, as for `hash_blocks`.
            among: Consider only these workers; unknown names are ignored.
            namespace: Adapter and salt; a `str` is a salt.

        Returns:
            The match, or None if no worker holds the first block.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A token is out of range.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker(block_size=2)
            >>> tracker.record_request([1, 2, 3, 4], "gpu0")
            2
            >>> tracker.find_best_worker([1, 2, 3, 4, 5, 6]).matched_blocks
            2
            >>> tracker.find_best_worker([1, 2], among=["gpu1"]) is None
            True
        """
    def overlaps(
        self,
        tokens: Tokens,
        *,
        among: Iterable[str] | None = None,
        namespace: str | Namespace | None = None,
    ) -> dict[str, int]:
        """Count the leading blocks every worker holds. Changes nothing.

        Args:
            tokens: Token ids, as for `hash_blocks`.
            among: Consider only these workers; unknown names are ignored.
            namespace: Adapter and salt; a `str` is a salt.

        Returns:
            Every worker with at least one leading block.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A token is out of range.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker(block_size=1)
            >>> tracker.record_request([1, 2, 3], "gpu0"), tracker.record_request([1, 9], "gpu1")
            (3, 2)
            >>> tracker.overlaps([1, 2, 3, 4])
            {'gpu0': 3, 'gpu1': 1}
        """
    def store(
        self,
        worker: str,
        hashes: Tokens,
        *,
        parent: int | None = None,
        medium: str = "gpu",
    ) -> int:
        """Store a chain of blocks by sequence hash, as engine events do.

        A set: storing a block twice counts once. A chain whose parent no worker holds is dropped.

        Args:
            worker: Name of the worker, registered if new.
            hashes: The chain, in order: a buffer of uint64 or a sequence of int.
            parent: Sequence hash of the block before the chain, None for the beginning of a prompt.
            medium: "gpu", "cpu" or "disk"; a chain in any other is dropped.

        Returns:
            The blocks newly held in that medium.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A hash is negative or over 18446744073709551615.

        Example:
            >>> from cachelb.index import BlockTracker, hash_blocks
            >>> tracker = BlockTracker(block_size=2)
            >>> chain = hash_blocks([1, 2, 3, 4, 5, 6], 2)
            >>> tracker.store("gpu0", chain[:1]), tracker.store("gpu0", chain[1:], parent=chain[0])
            (1, 2)
        """
    def remove(self, worker: str, hashes: Tokens, *, medium: str | None = None) -> int:
        """Remove single blocks, wherever they lie in a chain.

        Args:
            worker: Name of the worker.
            hashes: A buffer of uint64 or a sequence of int; unknown ones are ignored.
            medium: From which medium; None or an unknown one means all.

        Returns:
            How many left, counted in every medium they left.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A hash is negative or over 18446744073709551615.

        Example:
            >>> from cachelb.index import BlockTracker, hash_blocks
            >>> tracker = BlockTracker(block_size=1)
            >>> tracker.record_request([1, 2, 3], "gpu0")
            3
            >>> tracker.remove("gpu0", hash_blocks([1, 2, 3], 1)[1:2])
            1
            >>> tracker.overlaps([1, 2, 3])
            {'gpu0': 1}
        """
    def clear(self, worker: str) -> int:
        """Drop every block of a worker, which stays registered.

        Args:
            worker: Name of the worker.

        Returns:
            The distinct blocks dropped.

        Raises:
            TypeError: `worker` is not a str.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker(block_size=1)
            >>> tracker.record_request([1, 2, 3], "gpu0"), tracker.clear("gpu0"), tracker.workers()
            (3, 3, ['gpu0'])
        """
    def overlaps_of_hashes(self, hashes: Tokens, *, among: Iterable[str] | None = None) -> dict[str, int]:
        """Count the leading blocks of a chain of sequence hashes every worker holds. Changes nothing.

        Args:
            hashes: The chain, in order: a buffer of uint64 or a sequence of int.
            among: Consider only these workers; unknown names are ignored.

        Returns:
            Every worker with at least one leading block.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A hash is negative or over 18446744073709551615.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker()
            >>> tracker.store("gpu0", [11, 22, 33])
            3
            >>> tracker.overlaps_of_hashes([11, 22, 44])
            {'gpu0': 2}
        """
    def evict_worker(self, worker: str, max_blocks: int) -> int:
        """Evict the least recently used leaves of a worker.

        Args:
            worker: Name of the worker.
            max_blocks: How many blocks may stay per medium.

        Returns:
            How many went.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: `max_blocks` is negative.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker(block_size=1)
            >>> tracker.record_request([1, 2, 3], "gpu0"), tracker.evict_worker("gpu0", 1)
            (3, 2)
            >>> tracker.overlaps([1, 2, 3])
            {'gpu0': 1}
        """
    def remove_worker(self, worker: str) -> int:
        """Forget a worker and all it holds. Registered again under the same name, it starts with nothing.

        Args:
            worker: Name of the worker.

        Returns:
            The distinct blocks dropped.

        Raises:
            TypeError: `worker` is not a str.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker(block_size=1)
            >>> tracker.record_request([1, 2, 3], "gpu0"), tracker.remove_worker("gpu0"), tracker.workers()
            (3, 3, [])
        """
    def block_count(self, worker: str | None = None) -> int:
        """Count the distinct blocks held.

        Args:
            worker: By whom; None for the sum over all workers.

        Returns:
            How many, 0 for an unknown worker.

        Raises:
            TypeError: `worker` is not a str.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker(block_size=1)
            >>> tracker.record_request([1, 2, 3], "gpu0"), tracker.record_request([1], "gpu1")
            (3, 1)
            >>> tracker.block_count("gpu0"), tracker.block_count()
            (3, 4)
        """
    def workers(self) -> list[str]:
        """List the registered workers.

        Returns:
            Their names.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker()
            >>> tracker.record_request([], "gpu0"), tracker.workers()
            (0, ['gpu0'])
        """
    def snapshot(self) -> bytes:
        """Write everything down: settings, workers, blocks, order of use, times left to live.

        Equal states give equal bytes as long as nothing has a time to live.

        Returns:
            Versioned and checksummed bytes for `restore`.

        Raises:
            ValueError: With positional hashing.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> tracker = BlockTracker(block_size=1)
            >>> tracker.record_request([1, 2, 3], "gpu0")
            3
            >>> BlockTracker.restore(tracker.snapshot()).overlaps([1, 2])
            {'gpu0': 2}
        """
    @classmethod
    def restore(
        cls,
        data: Buffer,
        *,
        secret: str | Sequence[str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """Make the tracker that `snapshot` wrote down.

        Args:
            data: The bytes.
            secret: As for the constructor. Blocks stored in namespaces under another one are not found.
            clock: As for the constructor; times to live go on from its time.

        Returns:
            A new tracker.

        Raises:
            TypeError: `data` is not bytes or `clock` not callable.
            SnapshotError: The bytes are damaged, cut off, or of another version.

        Example:
            >>> from cachelb.errors import SnapshotError
            >>> from cachelb.index import BlockTracker
            >>> try:
            ...     BlockTracker.restore(b"something else")
            ... except SnapshotError as error:
            ...     print(error)
            snapshot refused: it does not start like a snapshot of cachelb
        """
    def validate(self) -> None:
        """Recount everything. Slow; for tests and diagnosis.

        Raises:
            AssertionError: An invariant is broken; the message names it.

        Example:
            >>> from cachelb.index import BlockTracker
            >>> BlockTracker().validate()
        """

@final
class PrefixMatch:
    """The longest prefix that a worker holds. Unpacks like a tuple.

    Example:
        >>> from cachelb.index import RadixTree
        >>> tree = RadixTree()
        >>> tree.insert("hello", "gpu0")
        5
        >>> tree.match_prefix("help")
        PrefixMatch(matched=3, total=4, workers=('gpu0',))
    """

    __match_args__: ClassVar[tuple[str, str, str]] = ("matched", "total", "workers")

    @property
    def matched(self) -> int:
        """Leading characters, or tokens in whole pages."""
    @property
    def total(self) -> int:
        """Characters or tokens of the key."""
    @property
    def workers(self) -> tuple[str, ...]:
        """Workers that hold the whole match; empty without a match."""
    def __iter__(self) -> Iterator[Any]: ...

@final
class RadixTree:
    """Tracks which worker holds which prefix, to the character or the token.

    The first key that is inserted decides whether it is a tree of text or of tokens. Text is counted in characters
    (code points) and compared as it is: nothing is normalised. A worker is registered by its first `insert`; names that
    are not known are no error: they hold nothing. Safe to use from any thread.

    Example:
        >>> from cachelb.index import RadixTree
        >>> tree = RadixTree()
        >>> tree.insert("hello", "gpu0"), tree.insert("hello world", "gpu1")
        (5, 11)
        >>> tree.overlaps("hello there")
        {'gpu0': 5, 'gpu1': 6}
        >>> tree.match_prefix("hello there")
        PrefixMatch(matched=6, total=11, workers=('gpu1',))
    """

    def __new__(
        cls,
        *,
        max_units: int | None = None,
        page_size: int = 1,
        ttl_s: float | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """Make an empty tree.

        Args:
            max_units: Characters or tokens that all workers together may hold, each counted for each of its holders.
                The least recently used goes first, leaves before their parents; a longer key keeps its beginning. None
                for no limit.
            page_size: Tokens are held and matched in whole pages of so many, 1 to 4096; 1 for text.
            ttl_s: Seconds until an entry ends that is not used again, None for never.
            clock: Monotonic seconds; called only when something has a time to live. The process's own clock if None.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range, or `max_units` below `page_size`.
        """
    @property
    def max_units(self) -> int | None:
        """Units that all workers together may hold."""
    @property
    def page_size(self) -> int:
        """Tokens per page."""
    @property
    def memory_bytes(self) -> int:
        """Heap bytes of the tree, about."""
    def insert(
        self,
        key: str | Tokens,
        worker: str,
        *,
        remote: bool = False,
        ttl_s: float | None = None,
        at: float | None = None,
    ) -> int:
        """Record that a worker holds a key. The whole path becomes the worker's most recent use.

        Args:
            key: Text, or token ids as for `hash_blocks`.
            worker: Name of the worker, registered if new.
            remote: Whether another router reported it. Remote entries go first when room is needed, and become local
                when they are inserted without this; the other way round changes nothing.
            ttl_s: Seconds until the entry ends; that of the tree if None.
            at: When it was used, in seconds of the caller's choice, for `evict_oldest`; a time before one that the
                worker was given already counts as that one. After all other uses if None.

        Returns:
            The characters or tokens newly held by the worker.

        Raises:
            TypeError: An argument has the wrong type, or the key is of another kind than those before.
            ValueError: A token, `ttl_s` or `at` is out of range, or the text has half of a surrogate pair.

        Example:
            >>> from cachelb.index import RadixTree
            >>> tree = RadixTree(page_size=2)
            >>> tree.insert([1, 2, 3, 4, 5], "gpu0"), tree.insert([1, 2, 9, 9], "gpu0")
            (4, 2)
        """
    def match_prefix(self, key: str | Tokens, *, among: Iterable[str] | None = None) -> PrefixMatch:
        """Find the longest cached prefix of a key and its holders. Changes nothing.

        Args:
            key: Text or token ids.
            among: Names to choose from; unknown ones are ignored. All workers if None.

        Returns:
            The length of the prefix, and its holders.

        Raises:
            TypeError: An argument has the wrong type, or the key is of another kind than those held.
            ValueError: A token is out of range, or the text has half of a surrogate pair.

        Example:
            >>> from cachelb.index import RadixTree
            >>> tree = RadixTree()
            >>> tree.insert("abc", "gpu0"), tree.insert("abcdef", "gpu1")
            (3, 6)
            >>> tree.match_prefix("abcdxyz", among=["gpu0", "gpu7"])
            PrefixMatch(matched=3, total=7, workers=('gpu0',))
        """
    def overlaps(self, key: str | Tokens, *, among: Iterable[str] | None = None) -> dict[str, int]:
        """Find how much of a key every worker holds. Changes nothing.

        Args:
            key: Text or token ids.
            among: Names to look at; unknown ones are ignored. All workers if None.

        Returns:
            Leading characters or tokens by worker, of those that hold at least one.

        Raises:
            TypeError: An argument has the wrong type, or the key is of another kind than those held.
            ValueError: A token is out of range, or the text has half of a surrogate pair.

        Example:
            >>> from cachelb.index import RadixTree
            >>> tree = RadixTree()
            >>> tree.insert("naïve", "gpu0"), tree.overlaps("naïf")
            (5, {'gpu0': 3})
        """
    def remove_worker(self, worker: str) -> int:
        """Forget a worker and all it holds. An unknown one is no error.

        Args:
            worker: Its name.

        Returns:
            The characters or tokens it held.

        Example:
            >>> from cachelb.index import RadixTree
            >>> tree = RadixTree()
            >>> tree.insert("abc", "gpu0"), tree.remove_worker("gpu0"), tree.workers()
            (3, 3, [])
        """
    def evict(self, max_units: int, *, worker: str | None = None) -> int:
        """Evict what was used longest ago, leaves before what they hang on, until no more than `max_units` are held.

        Long evictions are done in parts, between which other calls get their turn.

        Args:
            max_units: Characters or tokens that may stay.
            worker: Whose; of all workers together if None.

        Returns:
            The characters or tokens evicted.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: `max_units` is negative.

        Example:
            >>> from cachelb.index import RadixTree
            >>> tree = RadixTree()
            >>> tree.insert("abcdef", "gpu0"), tree.evict(4), tree.overlaps("abcdef")
            (6, 2, {'gpu0': 4})
        """
    def evict_oldest(self, worker: str, min_units: int) -> int:
        """Evict whole edges of a worker, oldest use first and all of the same time together.

        Args:
            worker: Its name; an unknown one holds nothing.
            min_units: Characters or tokens that must go at least, if there are as many.

        Returns:
            The characters or tokens evicted.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: `min_units` is negative.

        Example:
            >>> from cachelb.index import RadixTree
            >>> tree = RadixTree()
            >>> for text, at in [("hello", 1), ("help", 1), ("world", 2)]:
            ...     _ = tree.insert(text, "gpu0", at=at)
            >>> tree.evict_oldest("gpu0", 1), tree.overlaps("world")
            (6, {'gpu0': 5})
        """
    def size(self, worker: str | None = None) -> int:
        """Count what is held.

        Args:
            worker: By whom; an unknown one holds nothing. None for the sum over all workers.

        Returns:
            Characters or tokens.

        Example:
            >>> from cachelb.index import RadixTree
            >>> tree = RadixTree()
            >>> tree.insert("你好", "gpu0"), tree.insert("你好", "gpu1"), tree.size("gpu0"), tree.size()
            (2, 2, 2, 4)
        """
    def workers(self) -> list[str]:
        """List the workers that were inserted for and not removed.

        Returns:
            Their names.

        Example:
            >>> from cachelb.index import RadixTree
            >>> tree = RadixTree()
            >>> tree.insert("", "gpu0"), tree.workers()
            (0, ['gpu0'])
        """
    def snapshot(self) -> bytes:
        """Write everything down: settings, workers, keys, order of use, times left to live.

        Equal states give equal bytes as long as nothing has a time to live. The bytes hold the keys.

        Returns:
            Versioned and checksummed bytes for `restore`.

        Example:
            >>> from cachelb.index import RadixTree
            >>> tree = RadixTree()
            >>> tree.insert("abc", "gpu0"), RadixTree.restore(tree.snapshot()).overlaps("abx")
            (3, {'gpu0': 2})
        """
    @classmethod
    def restore(cls, data: Buffer, *, ttl_s: float | None = None, clock: Callable[[], float] | None = None) -> Self:
        """Make the tree that `snapshot` wrote down.

        Args:
            data: The bytes.
            ttl_s: As for the constructor, for what is inserted from now on.
            clock: As for the constructor; times to live go on from its time.

        Returns:
            A new tree.

        Raises:
            TypeError: `data` is not bytes or `clock` not callable.
            SnapshotError: The bytes are damaged, cut off, or of another version.

        Example:
            >>> from cachelb.errors import SnapshotError
            >>> from cachelb.index import RadixTree
            >>> try:
            ...     RadixTree.restore(b"something else")
            ... except SnapshotError as error:
            ...     print(error)
            snapshot refused: it does not start like a snapshot of cachelb
        """
    def validate(self) -> None:
        """Recount everything. Slow; for tests and diagnosis.

        Raises:
            AssertionError: An invariant is broken; the message names it.

        Example:
            >>> from cachelb.index import RadixTree
            >>> RadixTree().validate()
        """

@final
class GroupedEngineCache:
    """The blocks of one engine's cache groups, which share one pool, as the simulator has them.

    A step is a list of changes as the engine publishes them: `(group, hash)` for a block that lost its content, then
    `(group, first, end, kept)` for the blocks of a request that became full, and the numbers of those that can be found
    from now on.
    """

    def __new__(cls, max_blocks: int, layout: Mapping[str, object], *, max_batched_tokens: int | None = None) -> Self:
        """Create an empty cache.

        Args:
            max_blocks: Blocks of all groups together.
            layout: The fields of a `cachelb.cache_groups.CacheLayout`, those of its groups among them.
            max_batched_tokens: Tokens of a prompt computed in a step; None for the whole prompt.

        Raises:
            ValueError: An argument is out of range, or groups do not go together.

        Example:
            >>> from dataclasses import asdict
            >>> from cachelb._core import GroupedEngineCache
            >>> from cachelb.cache_groups import CacheGroup, CacheLayout
            >>> layout = CacheLayout([CacheGroup("mamba", 64), CacheGroup("full_attention", 64)])
            >>> cache = GroupedEngineCache(100, asdict(layout))
            >>> cache.start(range(1, 5), 300)
            (0, 0, 0)
            >>> cache.prefill(0), cache.look_up(range(1, 5), 300)
            ([[(0, 0, 4, [3]), (1, 0, 4, [0, 1, 2, 3])], []], (256, 256))
        """
    def __len__(self) -> int: ...
    def look_up(self, hashes: ArrayLike, prompt_tokens: int) -> tuple[int, int]:
        """Find what is held of a prompt.

        Args:
            hashes: Names of the prompt up to the end of each of the layout's hash blocks, as uint64.
            prompt_tokens: Tokens of the prompt.

        Returns:
            The tokens that are taken from the cache, and those that would be if only full attention counted.

        Raises:
            TypeError: `hashes` are no integers.
            ValueError: `prompt_tokens` is out of range.
        """
    def start(self, hashes: ArrayLike, prompt_tokens: int) -> tuple[int, int, int]:
        """Hold the blocks that a request takes from the cache, until it is released.

        Args:
            hashes: Names of the prompt's hash blocks.
            prompt_tokens: Tokens of the prompt.

        Returns:
            The number of the request, and what `look_up` returns.

        Raises:
            TypeError: `hashes` are no integers.
            ValueError: `prompt_tokens` is out of range.
        """
    def prefill(self, request: int) -> list[list[tuple[int, int] | tuple[int, int, int, list[int]]]]:
        """Compute the rest of a prompt, as far as there is room.

        Args:
            request: Its number.

        Returns:
            The steps.
        """
    def extend(
        self, request: int, hashes: ArrayLike, computed_tokens: int
    ) -> list[list[tuple[int, int] | tuple[int, int, int, list[int]]]]:
        """Compute an answer token by token, as far as there is room.

        Args:
            request: Its number.
            hashes: Names of the hash blocks of the prompt and the answer.
            computed_tokens: Tokens computed in the end: those of the prompt, and all but the last of the answer.

        Returns:
            The steps.

        Raises:
            TypeError: `hashes` are no integers.
        """
    def release(self, request: int) -> None:
        """Let the blocks of a request be reused.

        Args:
            request: Its number.
        """
    def clear(self) -> None:
        """Forget everything that can be found."""
    def validate(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An invariant is broken; the message names it.
        """

@final
class SimWorkload:
    """Requests of a simulated run, read once for any number of runs."""

    def __new__(
        cls, columns: Mapping[str, object], *, block_size: int, sessions: Sequence[str | None] | None = None
    ) -> Self:
        """Read the columns of `cachelb_lab.sim.workloads.Workload`.

        Args:
            columns: Arrays by name.
            block_size: Tokens per block.
            sessions: One per request; None or empty for none.

        Raises:
            ValueError: A column is missing, of another type, or does not fit the others.

        Example:
            >>> from cachelb._core import SimWorkload
            >>> from cachelb_lab.sim.workloads import build
            >>> chats = build("chat", seed=1, count=20)
            >>> len(SimWorkload(chats.columns(), block_size=chats.block_size))
            20
        """
    def __len__(self) -> int: ...

def simulate(
    gateways: list[Any],
    workload: SimWorkload,
    workers: list[dict[str, Any]],
    *,
    names: list[str],
    options: dict[str, Any],
    clients: Sequence[int] | None = None,
    sharing_lag: float | None = None,
    progress: Callable[[int], object] | None = None,
    admission: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a workload over simulated workers; `cachelb_lab.sim.simulate` is the way to call it.

    Args:
        gateways: Routers, which are used as they are and changed by the run, or objects with the methods of
            `cachelb_lab.sim.gateway.Gateway`.
        workload: The requests.
        workers: Settings of each engine.
        names: Registered names of the workers, in the same order.
        options: Delays, intervals, incidents by name; what is left out has its default.
        clients: The gateway each request comes to; all to the first by default.
        sharing_lag: Seconds that messages between gateways take; None for gateways that share nothing.
        progress: Called with the number of requests that are over; what it raises ends the run.
        admission: Settings of an `AdmissionGate` and `max_wait_s`, of each router.

    Returns:
        Columns by name as dtype and bytes, and a few numbers.

    Raises:
        ValueError: A setting is out of range.
        TypeError: The gateways are of two kinds.
    """
