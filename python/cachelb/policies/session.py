"""Keep every session on one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Any, Self

    from cachelb.policies.base import Clock, Key


class Session(BuiltinPolicy):
    """A session stays on the worker that served it.

    The session is `session=`, else the first tokens of the prompt. Three modes:
        sticky: A new session goes to the worker with the fewest (`least-loaded`) and is bound to it (`session`). If
            that worker is not available, the session moves and stays where it moved (`session-moved`).
        manual: As before, but a session keeps two workers, and returns to the older one when that is back. A new one
            goes where `assignment` says.
        hash: Nothing is remembered; every router with the same seed picks the same worker (`hash`).

    A binding is provisional until the worker answers; a request that fails before takes it back. A retry elsewhere
    moves the session only if its worker is gone by the next request. `finish_session` ends one. Requests without a
    session and a full block of prompt go to the least loaded worker (`no-key`).

    Example:
        >>> policy = Session()
        >>> workers = ["gpu0", "gpu1", "gpu2"]
        >>> with policy.select_worker(workers, session="chat-17") as first:
        ...     first.on_first_token()
        >>> second = policy.select_worker(workers, session="chat-17")
        >>> first.reason, second.reason, second.worker == first.worker
        ('least-loaded', 'session', True)
        >>> policy.finish_session("chat-17")
        True
    """

    name: ClassVar[str] = "session"
    needs: ClassVar[frozenset[str]] = frozenset({"session"})

    def __new__(
        cls,
        *,
        mode: Literal["sticky", "manual", "hash"] = "sticky",
        hard: bool = False,
        base: str | BuiltinPolicy | None = None,
        ttl_s: float | None = 7200,
        max_idle_secs: float | None = 14_400,
        assignment: Literal["random", "min_load", "min_group"] = "random",
        max_sessions: int = 10_000,
        load_factor: float = 1.25,
        balance_abs_threshold: Literal["auto"] | float = "auto",
        block_size: int = 16,
        prefix_token_count: int = 256,
        seed: int = 1337,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            mode: What binds a session to a worker.
            hard: Never serve a session elsewhere while its worker is registered: if that is not available, nobody is
                (`NoWorkerAvailable`). Otherwise an overloaded worker is left for one request (`spill`).
            base: The policy that places new and moved sessions: a name, or a policy whose options are taken, its
                block size among them. None places as the mode says.
            ttl_s: Seconds without a request after which a session of mode "sticky" is forgotten, None for ever.
            max_idle_secs: The same for mode "manual".
            assignment: How mode "manual" places new sessions: at random, by the fewest requests in flight, or by the
                fewest sessions.
            max_sessions: Sessions remembered; the one idle for longest makes room.
            load_factor: A worker is overloaded only above this many times the mean load.
            balance_abs_threshold: A worker is overloaded only above the mean load plus this many requests; "auto" is
                two standard deviations, from 4 to 32.
            block_size: Tokens per block; a prompt key is whole blocks.
            prefix_token_count: Leading tokens that make the key of a request without a session.
            seed: Seed of the hashes and of ties; routers that must agree share it.
            key: Function from a worker to its unique name.
            clock: Function that returns monotonic seconds, None is the system's.
            booking_ttl_s: Seconds without a sign of life after which a booking no longer counts as load.

        Returns:
            The policy.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option is outside its range, or `base` is no policy or a session policy itself.
        """
        options: dict[str, Any] = {
            "mode": mode,
            "hard": hard,
            "base": None,
            "ttl_s": ttl_s,
            "max_idle_secs": max_idle_secs,
            "assignment": assignment,
            "max_sessions": max_sessions,
            "load_factor": load_factor,
            "balance_abs_threshold": balance_abs_threshold,
            "block_size": block_size,
            "prefix_token_count": prefix_token_count,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        if base is not None:
            rule, base_options = _base(base, block_size)
            options |= {"base": (rule, base_options), "block_size": base_options["block_size"]}
        return super().__new__(cls, cls.name, options, key=key, clock=clock)


def _base(base: object, block_size: int) -> tuple[str, dict[str, Any]]:
    """Return the native rule and the options of a base policy."""
    from cachelb import policies

    if isinstance(base, str):
        rule, options = policies.make(base)._native  # noqa: SLF001 - of the base class
        options["block_size"] = block_size
    elif isinstance(base, BuiltinPolicy):
        rule, options = base._native  # noqa: SLF001 - of the base class
    else:
        raise TypeError(f"base must be a policy or the name of one, not {type(base).__name__}")
    if rule == Session.name:
        raise ValueError("base must not be a session policy: it places what the session policy does not")
    return rule, options
