"""One class per routing policy, and the protocol of your own. Made by `make stubs`: change the declarations instead."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict, Unpack, type_check_only

from cachelb._core import LearnedModel
from cachelb.policies.base import BuiltinPolicy as BuiltinPolicy
from cachelb.policies.base import Clock, Key
from cachelb.policies.custom import FleetView as FleetView
from cachelb.policies.custom import Policy as Policy
from cachelb.policies.custom import PolicyLike as PolicyLike
from cachelb.policies.custom import RequestView as RequestView
from cachelb.policies.custom import lowest as lowest
from cachelb.policies.learned import Learner

PolicyName: TypeAlias = Literal[
    "adaptive",
    "cache-aware",
    "least-loaded",
    "power-of-two",
    "rendezvous",
    "consistent-hash",
    "prefix-hash",
    "boundary-learning",
    "length-bucket",
    "session",
    "round-robin",
    "random",
    "prefix-affinity",
    "prefix-cache",
    "prefix-cache-and-load",
    "overlap-cost",
    "prefill-times-batch",
    "sticky-until-saturated",
    "least-expected-wait",
    "queue-over-throughput",
    "estimated-ttft",
    "exploit-explore",
    "kv-aware",
    "learned",
    "vllm-cache-aware",
    "rendezvous-hash",
]
"""Names of the policies that come with cachelb."""

@type_check_only
class SharedOptions(TypedDict, total=False):
    """Options of every policy."""

    seed: int | None
    """Seed of ties, samples and hashes: the same seed and the same calls give the same picks. None draws one;
    policies that divide requests by a hash have one on which all routers agree."""
    booking_ttl_s: float
    """Seconds without a sign of life after which a booking no longer counts as load."""
    key: Key
    """Function from a worker to its unique name, for workers without `.url` or `.id`: dicts, say."""
    clock: Clock
    """Function that returns monotonic seconds, 0 or more; None is the system's."""

@type_check_only
class KeyedOptions(SharedOptions, total=False):
    """Options of a policy that knows a prompt by its blocks."""

    block_size: int
    """Tokens per block, as the engines have it; a prompt is known by whole blocks."""

@type_check_only
class HashedOptions(KeyedOptions, total=False):
    """Options of a policy that hashes all blocks of a prompt."""

    hash_seed: int
    """Seed of the block hashes. Hashes given as `blocks=` must have been made with the same one."""

@type_check_only
class PlacedOptions(HashedOptions, total=False):
    """Options of a policy that remembers placements."""

    max_blocks_per_worker: int
    """Blocks one worker's cache holds; the least recently used leave first."""
    ttl_s: float | None
    """Seconds a placement counts as cached, None until evicted."""

class Adaptive(BuiltinPolicy):
    """The worker on which a request costs the fleet the least time, whatever the load, the fleet and the traffic.

    The cost is an estimate in milliseconds: the prefill that waits on the worker and that of the request's own uncached
    tokens; the blocks that these evict from the cache; the delay of the requests that run there; all but the wait
    cost more the less free KV memory the worker has (`kv_blocks` of `Router.add_worker`), divided by the speed that
    first tokens showed; and the wait until there is room. Nothing must be set: without `kv_blocks` KV use is taken
    from load reports, and without those it does not count; without first tokens all workers are equally fast.
    Weights other than 1 take the place of measured speeds.

    Example:
        >>> policy = Adaptive(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> first.on_complete()
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again.worker == first.worker, again.reason
        (True, 'prefix')
    """

    def __new__(
        cls,
        *,
        objective: Literal["balanced", "ttft", "e2e", "median"] = "balanced",
        load_ms_per_token: Mapping[str, float] | None = None,
        load_startup_ms: Mapping[str, float] | None = None,
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            objective: The time to minimise: ``ttft``, the time to first tokens; ``e2e``, that of whole answers, so that
                fewer prompts are computed beside those that generate; ``balanced``, the lowest geometric mean of the
                ratios of median, mean and P99 TTFT and of whole answers to the best of any policy; ``median``, the
                typical request: as ``balanced``, but long prompts are sent to where requests wait already, which bounds
                what a short one pays for them and makes the longest waits longer.
            load_ms_per_token: Milliseconds that loading takes per prompt token, by medium: ``{"cpu": 0.003, "disk":
                0.015}``. Blocks there then count by the part of their computing, as first tokens measured it, that
                loading saves. A medium left out counts 0.8 ("cpu") or 0.3 ("disk") of device memory.
            load_startup_ms: Milliseconds before the first token is loaded, by medium; only with `load_ms_per_token` of
                the same one.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class CacheAware(BuiltinPolicy):
    """Longest cached prefix first, load second; needs no events from the engines.

    The policy remembers where it sent which blocks, up to the size of each worker's cache. A request whose prompt is
    known well enough goes to the least loaded of the workers that hold most of it (`prefix`), unless that worker is
    overloaded: then to the least loaded of all (`spill`), which holds the prompt from then on. Other requests go to
    the least loaded worker (`cold`, `short-prompt`, `no-key`).

    Example:
        >>> policy = CacheAware(seed=1)
        >>> workers = ["gpu0", "gpu1", "gpu2"]
        >>> first = policy.select_worker(workers, tokens=range(100))
        >>> first.reason
        'cold'
        >>> again = policy.select_worker(workers, tokens=range(100))
        >>> again.worker == first.worker, again.reason, again.matched_tokens
        (True, 'prefix', 96)
        >>> first.on_complete(), again.on_complete()
        (None, None)
    """

    def __new__(
        cls,
        *,
        cache_threshold: float = 0.3,
        load_factor: float = 1.25,
        max_blocks_per_backend: int | None = None,
        eviction_interval_secs: float = 60.0,
        balance_abs_threshold: Literal["auto"] | float = "auto",
        min_matched_tokens: int | None = None,
        index: Literal["blocks", "radix"] = "blocks",
        page_size: int = 1,
        matcher: Literal["kary", "binary", "linear"] = "kary",
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            cache_threshold: Share of the prompt's full blocks that must be cached for a hit, inclusive.
            load_factor: A holder is overloaded only above this many times the mean load.
            max_blocks_per_backend: Another spelling of `max_blocks_per_worker`, used if given.
            eviction_interval_secs: Accepted for configurations that have it; eviction happens with each request.
            balance_abs_threshold: A holder is overloaded only above the mean load plus this many requests; "auto" is
                two standard deviations, from 4 to 32.
            min_matched_tokens: Cached tokens that make a hit whatever their share.
            index: "radix" compares prompts page by page in a tree instead of block by block: for engines that reuse
                parts of blocks, such as those of `SGLang`. `block_size` has no effect then. With pages of one token it
                takes tokens, text and messages, but no `blocks=` and no KV events.
            page_size: Tokens per page of the tree.
            matcher: How prefixes are searched; all give the same answer.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class LeastLoaded(BuiltinPolicy):
    """The least loaded worker; equal loads go to the one whose last pick is longest ago.

    Loads are divided by the worker's weight.

    Example:
        >>> policy = LeastLoaded(seed=1)
        >>> decisions = [policy.select_worker(["gpu0", "gpu1"], by_load=True) for _ in range(4)]
        >>> policy.loads()
        {'gpu0': 2, 'gpu1': 2}
        >>> for decision in decisions:
        ...     decision.on_complete()
    """

    def __new__(
        cls, *, load: Literal["inflight", "tokens", "blocks"] = "inflight", **shared: Unpack[KeyedOptions]
    ) -> Self:
        """Build the policy.

        Args:
            load: The measure of load: requests in flight, uncached prompt tokens without a first token, or blocks held
                by requests past it.
            **shared: Those of `KeyedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class PowerOfTwo(BuiltinPolicy):
    """The less loaded of a few workers drawn at random: nearly as even as asking all of them, and no herding.

    Example:
        >>> policy = PowerOfTwo(seed=1)
        >>> busy = [policy.select_worker(["gpu0"], by_load=True) for _ in range(9)]
        >>> policy.select_worker(["gpu0", "gpu1"], by_load=True).worker
        'gpu1'
    """

    def __new__(
        cls,
        *,
        choices: int = 2,
        load: Literal["inflight", "expected-wait"] = "inflight",
        **shared: Unpack[SharedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            choices: Workers drawn per request.
            load: How they are compared: requests in flight, or seconds of queued work from engine reports
                (`update_load`); without a report from each of them, requests in flight.
            **shared: Those of `SharedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class Rendezvous(BuiltinPolicy):
    """Highest random weight hashing: routers with the same seed agree without sharing state.

    The key is the session, else the first tokens of the prompt. When a worker leaves, only its keys move; when it
    returns, it gets exactly its old keys back. With `bounded=True`, a worker that already has more than its share of
    the requests in flight is passed over for the next best (`hash-bounded`). Requests without a key go to the least
    loaded worker (`no-key`).

    Example:
        >>> here, there = Rendezvous(), Rendezvous()
        >>> workers = ["gpu0", "gpu1", "gpu2"]
        >>> decision = here.select_worker(workers, session="chat-17")
        >>> decision.worker == there.select_worker(workers[::-1], session="chat-17").worker, decision.reason
        (True, 'hash')
    """

    def __new__(
        cls,
        *,
        bounded: bool = False,
        epsilon: float = 0.25,
        prefix_token_count: int = 256,
        **shared: Unpack[KeyedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            bounded: Keep every worker's requests in flight within its share.
            epsilon: How much more than its share a worker may have if `bounded`.
            prefix_token_count: Leading tokens that make the key of a request without a session.
            **shared: Those of `KeyedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class ConsistentHash(BuiltinPolicy):
    """A hash ring with bounded loads: routers with the same seed agree on where a key belongs.

    The key is the session, else the first tokens of the prompt. It belongs to the first worker clockwise (`hash`), and
    goes on to the next one that has room (`hash-bounded`) if that worker already has more than its share of the
    requests in flight. Requests without a key go to the least loaded worker (`no-key`).

    Example:
        >>> policy = ConsistentHash()
        >>> workers = ["gpu0", "gpu1", "gpu2"]
        >>> first = policy.select_worker(workers, session="chat-17")
        >>> second = policy.select_worker(workers, session="chat-17")
        >>> first.reason, second.reason, first.worker == second.worker
        ('hash', 'hash-bounded', False)
    """

    def __new__(
        cls,
        *,
        vnodes: int = 150,
        epsilon: float | None = 0.25,
        prefix_token_count: int = 256,
        **shared: Unpack[KeyedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            vnodes: Points on the ring of a worker of weight 1; more make shares more even and the ring larger.
            epsilon: A worker may have this much more than its share of the requests in flight; None never looks at the
                load.
            prefix_token_count: Leading tokens that make the key of a request without a session.
            **shared: Those of `KeyedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class PrefixHash(BuiltinPolicy):
    """The head of the prompt picks a worker on a hash ring; an overloaded one is passed over.

    Nothing is remembered about prompts, so routers with the same seed agree without sharing state. The key is the
    session, else the longest of the `cache_boundaries` that the prompt reaches, else its first tokens. The key's
    worker serves (`hash`) unless its load is over both margins. Then the next shorter boundary's worker is tried,
    then the least loaded one (`hash-bounded`). If all are as busy, the request stays. Requests without a key go
    to the least loaded worker (`no-key`).

    If every prompt begins with one system prompt longer than `prefix_token_count`, all of them have the same key: set
    boundaries past it.

    Example:
        >>> policy = PrefixHash(cache_boundaries=[512, 2048])
        >>> workers = ["gpu0", "gpu1", "gpu2"]
        >>> system = list(range(512))
        >>> picks = [policy.select_worker(workers, tokens=system + [n] * 100) for n in range(3)]
        >>> len({pick.worker for pick in picks}), picks[0].reason
        (1, 'hash')
    """

    def __new__(
        cls,
        *,
        prefix_token_count: int = 256,
        load_factor: float = 1.25,
        balance_abs_threshold: float = 10.0,
        cache_boundaries: Sequence[int] = (),
        **shared: Unpack[HashedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            prefix_token_count: Leading tokens that make the key of a prompt that reaches no boundary.
            load_factor: A worker is overloaded only above this many times the average load.
            balance_abs_threshold: A worker is overloaded only above the average load plus this many requests.
            cache_boundaries: Lengths in tokens at which prompts are hashed, such as the ends of the system prompts;
                each is rounded down to whole blocks.
            **shared: Those of `HashedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class BoundaryLearning(BuiltinPolicy):
    """A prefix that ends with a message goes where it was served before.

    When a request is answered, a route is learned at the end of each of its messages: this prefix lies on that worker.
    The deepest route that begins a later prompt decides (`prefix`): the next turn finds the whole conversation, a
    conversation that branches finds its last common message, a new one its system prompt. A prompt without a
    route goes to a hash ring with bounded loads, by its first message (`hash`, `hash-bounded`). A worker whose load
    is above `load_imbalance_factor` times the lower median plus 2 is left for the least loaded one (`diverted`),
    which then is a holder too.

    `boundaries=` gives the ends of messages; `cachelb.boundaries.message_boundaries` finds them in tokens, and for
    `messages=` they are known. The only route of a prompt without boundaries is its first `prefix_token_length`
    tokens. Ends are rounded down to whole blocks, since an engine's cache shares nothing less.

    A route is lost when it was not served for `ttl_s`, when its worker leaves or its cache is reset, and when there are
    more than `max_routes`: then the least recently used goes first, and within one conversation the deepest. A
    request that fails before its first token teaches nothing. `stats()["routes"]` counts them.

    Example:
        >>> policy, workers = BoundaryLearning(), ["gpu0", "gpu1", "gpu2"]
        >>> system, question = list(range(256)), [7] * 50
        >>> first = policy.select_worker(workers, tokens=system + question, boundaries=[256, 306])
        >>> first.on_complete()
        >>> other = policy.select_worker(workers, tokens=system + [9] * 40, boundaries=[256, 296])
        >>> first.reason, other.reason, other.worker == first.worker
        ('hash', 'prefix', True)
    """

    def __new__(
        cls,
        *,
        max_routes: int = 100000,
        ttl_s: float | None = 3600.0,
        prefix_token_length: int = 128,
        min_prefix_boundary_tokens: int = 4,
        load_imbalance_factor: float | None = 2.0,
        epsilon: float | None = 0.25,
        multi_depth: bool = True,
        learn: Literal["served", "original"] = "served",
        **shared: Unpack[HashedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            max_routes: Routes remembered; as many conversations as times their messages. One takes about 200 bytes.
            ttl_s: Seconds after which a worker that served a prefix is no longer assumed to hold it, None for ever.
            prefix_token_length: Tokens that a prompt without boundaries is known by.
            min_prefix_boundary_tokens: Boundaries before that, in whole blocks, are left out.
            load_imbalance_factor: A worker is left only above this many times the lower median load plus 2; None never
                leaves it.
            epsilon: Slack of the hash ring over the fair share of requests in flight; None never looks at the load.
            multi_depth: Learn at every boundary, not only at the first.
            learn: The worker whose route a diverted request makes: the one that served it, which becomes a holder
                beside the other, or the one it was diverted from.
            **shared: Those of `HashedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class LengthBucket(BuiltinPolicy):
    """Prompts of similar length share a worker, so that short ones do not wait behind long ones.

    Meant for prefill workers. The workers, in the order of registration, divide the lengths among them: at first in
    equal parts of `l_max`, later so that each gets an equal part of the tokens that came in. If the workers got too
    unequal parts lately, the one that got least serves (`imbalance`). A worker that is not available is stood in for by
    its neighbours. Requests of unknown length go to the least loaded worker (`no-key`).

    Example:
        >>> policy = LengthBucket(l_max=4096)
        >>> workers = ["gpu0", "gpu1", "gpu2", "gpu3"]
        >>> [policy.select_worker(workers, prompt_tokens=n, dry_run=True).worker for n in (1023, 1024, 9999)]
        ['gpu0', 'gpu1', 'gpu3']
    """

    def __new__(
        cls,
        *,
        l_max: int = 4096,
        balance_abs_threshold: float = 8192.0,
        balance_rel_threshold: float = 1.0001,
        bucket_adjust_interval_secs: float = 5.0,
        **shared: Unpack[SharedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            l_max: Prompt tokens that the first ranges divide among them; the last range is open.
            balance_abs_threshold: The workers' tokens of the latest interval may be this far apart.
            balance_rel_threshold: Further apart, the largest must also be more than this many times the smallest to be
                out of balance.
            bucket_adjust_interval_secs: Seconds that tokens count, and seconds between two cuts. Ranges are cut anew
                when the traffic has doubled or halved.
            **shared: Those of `SharedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class Session(BuiltinPolicy):
    """A session stays on the worker that served it.

    The session is `session=`, else the first tokens of the prompt. Three modes:
        sticky: A new session goes to the worker with the fewest (`least-loaded`) and is bound to it (`session`). If
            that worker is not available, the session moves and stays where it moved (`session-moved`).
        manual: As `sticky`, but a session keeps two workers, and returns to the older one when that is back. A new
            one is placed by `assignment`.
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

    def __new__(
        cls,
        *,
        mode: Literal["sticky", "manual", "hash"] = "sticky",
        hard: bool = False,
        base: PolicyName | BuiltinPolicy | None = None,
        ttl_s: float | None = 7200.0,
        assignment: Literal["random", "min_load", "min_group"] = "random",
        max_sessions: int = 10000,
        load_factor: float = 1.25,
        balance_abs_threshold: Literal["auto"] | float = "auto",
        prefix_token_count: int = 256,
        **shared: Unpack[KeyedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            mode: How a session is bound to a worker.
            hard: Never serve a session elsewhere while its worker is registered: if that is not available, no worker is
                (`NoWorkerAvailable`). Otherwise an overloaded worker is left for one request (`spill`).
            base: The policy that places new and moved sessions: a name, or a policy whose options are taken, its block
                size among them. None places by the mode.
            ttl_s: Seconds without a request after which a session is forgotten, None for ever.
            assignment: How mode "manual" places new sessions: at random, by the fewest requests in flight, or by the
                fewest sessions.
            max_sessions: Sessions remembered; the one idle for longest makes room.
            load_factor: A worker is overloaded only above this many times the mean load.
            balance_abs_threshold: A worker is overloaded only above the mean load plus this many requests; "auto" is
                two standard deviations, from 4 to 32.
            prefix_token_count: Leading tokens that make the key of a request without a session.
            **shared: Those of `KeyedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class RoundRobin(BuiltinPolicy):
    """The next worker in turn, in the order of registration.

    The turn belongs to workers, not to positions in the list, so a worker that comes and goes does not make the others
    jump. With unequal weights (`set_weight`) turns are smooth: 5:1:1 gives a a b a c a a.

    Example:
        >>> policy = RoundRobin(start="first")
        >>> [policy.select_worker(["gpu0", "gpu1", "gpu2"], by_load=True).worker for _ in range(4)]
        ['gpu0', 'gpu1', 'gpu2', 'gpu0']
    """

    def __new__(cls, *, start: Literal["seeded", "first"] = "seeded", **shared: Unpack[SharedOptions]) -> Self:
        """Build the policy.

        Args:
            start: The first worker: drawn, so that several routers do not begin alike, or the first registered.
            **shared: Those of `SharedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class Random(BuiltinPolicy):
    """A worker drawn at random, in proportion to weight (`set_weight`).

    Example:
        >>> policy = Random(seed=1)
        >>> policy.select_worker(["gpu0", "gpu1"], by_load=True).reason
        'random'
    """

    def __new__(cls, **shared: Unpack[SharedOptions]) -> Self:
        """Build the policy.

        Args:
            **shared: Those of `SharedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class PrefixAffinity(BuiltinPolicy):
    """Ray Serve's prefix cache affinity: the longest match in a tree of texts, unless queues are too unlike.

    If the longest queue is more than `imbalanced_threshold` requests longer than the shortest, two random workers are
    compared (`imbalance`). Else the tree gives the workers that saw the longest beginning of the prompt, to the
    character. If that is `match_rate_threshold` of the prompt or more, the worker with the shortest queue among
    those that saw it serves (`prefix`), else the one of which the tree knows the least text (`cold`). A worker far
    above the mean load is left for the least loaded one (`spill`), which holds the prompt from then on. Requests
    without a prompt go to the better of two random workers (`no-key`, `short-prompt`).

    Prompts given as tokens are compared to the token, prompts given as hashes to the block; sizes count four characters
    a token then. `compat="ray"` is Ray's own behaviour: no queue is too long, no gate, and nothing is ever evicted.

    Example:
        >>> policy = PrefixAffinity(seed=1)
        >>> workers = ["gpu0", "gpu1"]
        >>> first = policy.select_worker(workers, tokens=range(10))
        >>> again = policy.select_worker(workers, tokens=[*range(7), 70, 80, 90])
        >>> first.reason, again.reason, again.worker == first.worker
        ('cold', 'prefix', True)
    """

    def __new__(
        cls,
        *,
        imbalanced_threshold: float | None = None,
        match_rate_threshold: float = 0.1,
        do_eviction: bool | None = None,
        eviction_threshold_chars: int = 400000,
        eviction_target_chars: int = 360000,
        eviction_interval_secs: float = 10.0,
        compat: Literal["ray"] | None = None,
        gate: bool | None = None,
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            imbalanced_threshold: Requests that the longest queue may be longer than the shortest. None is 10, as Ray's
                guide has it, and without limit with `compat="ray"`, as its code has it.
            match_rate_threshold: Share of the prompt that must match, inclusive.
            do_eviction: Whether the tree forgets. None is True, and False with `compat="ray"`: such a tree grows
                without limit.
            eviction_threshold_chars: Characters known of one worker above which the least recently used leave.
            eviction_target_chars: Characters that are left then.
            eviction_interval_secs: Seconds between two looks at the sizes. One at twice the threshold does not wait.
            compat: "ray" for the defaults of Ray Serve.
            gate: Whether a worker with far more requests than the mean is left for the least loaded. None is True, and
                False with `compat="ray"`: then a text that all share may send everything to one worker.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class PrefixCache(BuiltinPolicy):
    """The holder of the longest prefix if it is long enough, the least loaded worker otherwise; a baseline.

    Above `tau` load does not count: every request with a popular prefix goes to the same worker. `cache-aware` is
    this policy with a remedy; so is `gate=True` here.

    Example:
        >>> policy = PrefixCache(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> first.reason, again.reason, again.worker == first.worker
        ('cold', 'prefix', True)
    """

    def __new__(cls, *, tau: float = 0.5, gate: bool = False, **shared: Unpack[PlacedOptions]) -> Self:
        """Build the policy.

        Args:
            tau: Share of the prompt's tokens that must be exceeded for a hit; 1 is least loaded.
            gate: Whether an overloaded holder is left for the least loaded worker (`spill`).
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class PrefixCacheAndLoad(BuiltinPolicy):
    """The longest prefix among the workers whose load is not far above the mean; as AIBrix does it.

    If any two workers are more than `imbalance_threshold` requests apart, every request goes to the least loaded one
    (`imbalance`), which ends affinity for all of them. `scope="candidate"` asks only the worker that would be picked.

    Example:
        >>> policy = PrefixCacheAndLoad(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> first.on_complete()
        >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(100)).reason
        'prefix'
        >>> busy = [policy.select_worker([first.worker], by_load=True) for _ in range(9)]
        >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(100)).reason
        'imbalance'
    """

    def __new__(
        cls,
        *,
        imbalance_threshold: float = 8.0,
        k: float = 1.0,
        scope: Literal["fleet", "candidate"] = "fleet",
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            imbalance_threshold: Requests two workers may be apart before load alone decides.
            k: Standard deviations above the mean load that a holder may have.
            scope: Whose imbalance counts: "fleet" asks all workers, "candidate" only the chosen one: whether it is
                above 1.25 times the mean load, and two standard deviations above it.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class OverlapCost(BuiltinPolicy):
    """Dynamo's cost function, with its option names and defaults.

    Per worker, in blocks: the prefill queued there and of this request, less the cached blocks, plus those of the
    prompts in flight, those that several of them share counted once and those of this request not at all. Report first
    tokens (`on_first_token`), or every request counts as prefill until it ends.

    A placement counts as cached for 120 seconds unless `ttl_s` is given.

    Measured on a conversation trace, a `router_temperature` of 0.5 was slower than round robin: it gives up locality.

    Example:
        >>> policy = OverlapCost(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> first.on_first_token()
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again.reason, again.worker == first.worker
        ('prefix', True)
    """

    def __new__(
        cls,
        *,
        overlap_score_credit: float = 1.0,
        overlap_score_credit_decay: float = 0.0,
        prefill_load_scale: float = 1.0,
        decode_active_request_weight: float = 0.0,
        host_cache_hit_weight: float = 0.75,
        disk_cache_hit_weight: float = 0.25,
        shared_cache_multiplier: float = 0.0,
        router_temperature: float = 0.0,
        router_predicted_ttl_secs: float | None = None,
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            overlap_score_credit: Blocks of prefill saved per block in device memory; above 1 favours holders further.
            overlap_score_credit_decay: How fast prefill queued beyond the least anywhere, in units of the request,
                devalues device blocks.
            prefill_load_scale: Cost of a block of prefill.
            decode_active_request_weight: Cost of a request in flight.
            host_cache_hit_weight: Blocks of prefill saved per block in host memory.
            disk_cache_hit_weight: Blocks of prefill saved per block on disk.
            shared_cache_multiplier: Blocks of prefill saved per block in a shared store; 0.5 is usual where there is
                one.
            router_temperature: Above 0, workers are drawn by softmax over their costs, scaled to between 0 and 1.
            router_predicted_ttl_secs: Seconds a placement counts as cached on workers that publish events; None credits
                nothing there before an event confirms it.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class PrefillTimesBatch(BuiltinPolicy):
    """Prompt tokens to compute times requests in flight, the lowest of all workers.

    The tokens are those queued on the worker and those of this request it does not hold. LMetric's rule: for short
    chats while KV memory has room, and for the prefill side of prefill and decode pairs. Long agents fill KV memory
    with it: in simulations it was 15 times behind the best rule at half load. Near saturation it leaves holders of a
    prefix that are busy, and others compute the prefix again, until all are; `crowding=1` minds only the latter.

    Example:
        >>> policy = PrefillTimesBatch(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again.worker == first.worker, again.reason
        (False, 'spill')
        >>> first.on_complete()
        >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(1600)).worker == first.worker
        True
    """

    def __new__(cls, *, crowding: float = 0.0, **shared: Unpack[PlacedOptions]) -> Self:
        """Build the policy.

        Args:
            crowding: Weight of the requests that wait behind this one: the tokens that it adds to a worker count so
                many times more for each request that waits per worker, and every batch is larger by so many times the
                mean one. 0 is the rule as published.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class StickyUntilSaturated(BuiltinPolicy):
    """The workers that hold most of the prompt, as long as they answer soon enough; llm-d's affinity filter.

    Only workers that hold `affinity_threshold` of the prompt take part (`sticky`), unless the first token would come
    `max_ttft_penalty_ms` later there than elsewhere (`sticky-broken`). The one of those that take part with the
    fewest prompt tokens waiting is picked.

    The penalty is only as good as the throughput: calibrate `peak_prefill_throughput`, or let it be observed.

    Example:
        >>> policy = StickyUntilSaturated(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> first.reason, again.reason, again.worker == first.worker
        ('cold', 'sticky', True)
    """

    def __new__(
        cls,
        *,
        affinity_threshold: float = 0.8,
        min_matched_tokens: int | None = None,
        exploration_probability: float = 0.0,
        max_ttft_penalty_ms: float = 18000.0,
        peak_prefill_throughput: Literal["observed"] | float = 15928.0,
        gate: bool = True,
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            affinity_threshold: Share of the prompt's blocks that a worker must hold; 0 turns the filter off.
            min_matched_tokens: Cached tokens that suffice whatever their share, for long prompts with a shared head.
            exploration_probability: How often every worker takes part all the same (`explore`).
            max_ttft_penalty_ms: How much later than elsewhere the first token may come; 0 always stays.
            peak_prefill_throughput: Prompt tokens per second of every worker; "observed" uses the measured rate of
                each. The default is a 32B model on two H100.
            gate: Whether a holder with far more requests than the mean is left too (`sticky-broken`); False is llm-d's
                rule.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class LeastExpectedWait(BuiltinPolicy):
    """The worker that would start the request soonest, by its engine's report and the requests sent since.

    Feed it with `update_load`: queued tokens (or waiting requests), prompt tokens per second and KV use. Waits are in
    seconds, so workers of unlike speed compare. A worker without a report is judged by its requests in flight; without
    any report all are, and if there are only reports too old to use the reason is `stale-load`.

    Example:
        >>> policy = LeastExpectedWait(seed=1)
        >>> policy.update_load("gpu0", queued_tokens=4_000, prefill_tps=8_000)
        >>> policy.update_load("gpu1", queued_tokens=3_000, prefill_tps=2_000)
        >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(100)).worker
        'gpu0'
    """

    def __new__(
        cls,
        *,
        kv_pressure_weight: float = 0.15,
        max_waiting_requests: int = 0,
        cache_aware: bool = True,
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            kv_pressure_weight: Seconds that a half-full KV cache is worth; grows without bound as it fills.
            max_waiting_requests: Reported waiting requests at which a worker takes no more; if all are full, none is
                available. 0 is off.
            cache_aware: Whether the request's own uncached tokens count.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class QueueOverThroughput(BuiltinPolicy):
    """Requests in flight over a throughput given once; a baseline that the literature calls Mooncake.

    `estimated-ttft` is Mooncake's published algorithm.

    Example:
        >>> policy = QueueOverThroughput(throughput={"gpu0": 3.0, "gpu1": 1.0}, seed=1)
        >>> held = [policy.select_worker(["gpu0", "gpu1"], by_load=True) for _ in range(2)]
        >>> [decision.worker for decision in held]
        ['gpu0', 'gpu0']
    """

    def __new__(cls, *, throughput: float | Mapping[str, float] = 1.0, **shared: Unpack[SharedOptions]) -> Self:
        """Build the policy.

        Args:
            throughput: One number for all workers, or by worker key, in any one unit. A worker left out has the mean of
                the others.
            **shared: Those of `SharedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class EstimatedTtft(BuiltinPolicy):
    """Queue plus prefill in milliseconds, the lowest of all workers: Mooncake's Algorithm 1.

    A worker's queue is the sum of the estimates of its requests without a first token, less the time the first of them
    has been computing: report first tokens (`on_first_token`). If blocks can be sent between workers, one that holds
    little may fetch them. If no worker meets an objective, the earliest is taken (`slo-unattainable`) or none.

    Example:
        >>> policy = EstimatedTtft(seed=1, ttft_slo_ms=40, prefill=(4.2e-7, 0.0152, 16.5))
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(8000))
        >>> first.on_first_token()
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(8000))
        >>> first.reason, again.reason, again.worker == first.worker
        ('slo-unattainable', 'prefix', True)
    """

    def __new__(
        cls,
        *,
        prefill: Sequence[float] | None = None,
        transfer_ms_per_token: float | None = None,
        kvcache_balancing_threshold: float = 2.0,
        ttft_slo_ms: float | None = None,
        tbt_slo_ms: float | None = None,
        on_slo: Literal["route", "reject"] = "route",
        gate: bool = True,
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            prefill: Milliseconds of a prefill per token squared, per token and per request, fitted to your hardware;
                None takes the speed that first tokens showed.
            transfer_ms_per_token: Milliseconds to fetch the keys and values of a token from another worker, None if
                that is not possible. It is 0.01 for an 8B model over 100 Gbit/s.
            kvcache_balancing_threshold: How many times longer the best prefix must be to be fetched.
            ttft_slo_ms: Longest time to the first token, None for any; without `prefill` it applies once a first token
                has come.
            tbt_slo_ms: Longest time between two tokens, by reports of engines, None for any.
            on_slo: The action if no worker meets them: "route" to the earliest, or "reject".
            gate: Whether a worker with far more requests than the mean is left for the least loaded (`spill`): decoding
                does not show in the estimate. False is the published rule.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class ExploitExplore(BuiltinPolicy):
    """Preble's E2 (Srivatsa et al., ICLR 2025): exploit a cached prefix, or explore the cheapest worker.

    The cost of a worker is the seconds of prefill that it was sent lately, plus the seconds of decoding that its
    requests in flight are expected to take. If more of the prompt is cached than not, the cheapest of the workers that
    hold most of it serves (`prefix`); once it costs far more than the cheapest of all, that one does and is a holder
    too (`imbalance`). Other requests go to the cheapest worker (`cold`, `short-prompt`, `no-key`). A research baseline.

    It differs from the published code where that is tied to one model and GPU: prefill times come from `prefill`,
    missing tokens are counted request by request instead of by miss rates of tree nodes, evicted blocks have no
    price, and a hot prefix gains holders through the gate (`spill`), not through times to the first token.

    Example:
        >>> policy = ExploitExplore(seed=1)
        >>> workers = ["gpu0", "gpu1"]
        >>> first = policy.select_worker(workers, tokens=range(640))
        >>> again = policy.select_worker(workers, tokens=[*range(512), *range(9000, 9128)])
        >>> other = policy.select_worker(workers, tokens=[*range(128), *range(9000, 9512)])
        >>> first.reason, again.reason, again.worker == first.worker, other.reason, other.worker == first.worker
        ('cold', 'prefix', True, 'cold', False)
    """

    def __new__(
        cls,
        *,
        tpot_s: float = 0.15,
        prefill: Sequence[float] = (4.209989e-07, 0.01518344, 16.50142),
        gate: bool = True,
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            tpot_s: Seconds per output token of a worker that reports none.
            prefill: Milliseconds of a prefill per token squared, per token and per request; fit them to your hardware.
                The default is an 8B model on an A100.
            gate: Whether a holder with far more requests than the mean is left for the least loaded worker (`spill`).
                False is the published rule.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class KvAware(BuiltinPolicy):
    """Longest prefix by the engines' own events first, load second.

    Blocks in host memory, in a shared store or on disk count by their credit. A placement counts at once
    (`enable_speculative`) and for `speculative_ttl_ms` more unless an event confirms it. Without events the policy goes
    by its own placements, as `cache-aware` does; and so it does for text, which events do not cover (`text-only`).
    If the picked worker's event stream is behind, its confirmed blocks are doubtful (`stale-events`).

    Example:
        >>> policy = KvAware(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> first.reason, again.reason, again.worker == first.worker
        ('cold', 'prefix', True)
    """

    def __new__(
        cls,
        *,
        enable_speculative: bool = True,
        speculative_ttl_ms: int = 2000,
        credits: Mapping[str, float] | None = None,
        continuation: Literal["longest", "best-credit"] = "longest",
        scoring: Literal["prefix", "cost"] = "prefix",
        load_factor: float = 1.25,
        balance_abs_threshold: Literal["auto"] | float = "auto",
        router_temperature: float = 0.0,
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            enable_speculative: Whether a placement counts before an event confirms it.
            speculative_ttl_ms: Milliseconds it counts without one.
            credits: The credit of a block by medium, 0 to 1: "gpu" 1.0, "cpu" 0.8, "external" 0.6 and "disk" 0.3 unless
                given.
            continuation: Which medium continues the device's prefix if several do: the longest, which engines load, or
                the one worth most.
            scoring: "prefix" takes the longest prefix, "cost" the lowest product of prefill work and batch size.
            load_factor: A holder is overloaded only above this many times the mean load.
            balance_abs_threshold: A holder is overloaded only above the mean load plus this many requests; "auto" is
                two standard deviations, from 4 to 32.
            router_temperature: Above 0, workers are drawn by softmax over the uncached tokens, or over the cost.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

class Learned(Learner):
    """Send a request where a model expects the shortest time to its first token; the model learns from every answer.

    After Lodestar (Lim et al., 2026). A sample is the state of a request and a worker when it is routed (cached
    share of the prompt, running and waiting requests, tokens in flight, KV use, the GPU) and the time that its
    first token then took. After `n_min` of them a small network is trained, in a thread of its own, and again after
    every `theta`. From then on a request goes to one of the workers that are within `delta` of the least expected
    time (`learned`, `learned-tie`); a share of `epsilon` goes anywhere, to be learned from (`explore`).

    As long as there is no model (`cold-start`), and wherever it cannot be trusted, `fallback` decides, with a
    reason of its own: `ood` for values outside its training data, `stale-load` for reports that are too old,
    `model-drift` when its errors grew, `model-stale`, `model-timeout`, `model-error`, `normaliser-mismatch`. While the
    KV caches are full, prompts that begin alike are kept to `k` workers (`k-filter` where that made the difference).

    It is no better than its training data: in simulations it was 10 times behind the best rule on agents new to it.

    Only first tokens teach: call `Decision.on_first_token`, or `on_tokens`. Requests that fail teach nothing. Give GPU
    models with `Router.add_worker(gpu=)` where workers differ, and load reports (`Router.update_load`): without them
    the model sees only bookings made here.

    Example:
        >>> policy = Learned(n_min=200, theta=200, training="inline", model_kind="linear", seed=1)
        >>> for i in range(300):
        ...     with policy.select_worker(["gpu0", "gpu1"], tokens=range(i, i + 160 + 16 * (i % 7))) as decision:
        ...         decision.on_first_token()
        >>> decision.reason in {"learned", "learned-tie", "explore", "ood", "cold-start"}
        True
        >>> policy.learned_stats().samples
        300
    """

    def __new__(
        cls,
        *,
        epsilon: float = 0.01,
        delta: float = 0.1,
        tie: Literal["cached", "random"] = "cached",
        crowding: float = 1.0,
        k: int = 2,
        k_slack: float | None = 0.1,
        tau_sat: float = 0.8,
        tau_ben: float = 100.0,
        prefix_token_length: int = 128,
        max_scored: int = 256,
        fallback: PolicyName | BuiltinPolicy = "prefix-cache-and-load",
        outside: Literal["worker", "fleet", "ignore"] = "worker",
        guards: bool = True,
        timeout_ms: float | None = 10.0,
        max_model_age_s: float | None = None,
        reward: Literal["ttft", "e2e", "slo"] = "ttft",
        slo_ttft_ms: float | None = None,
        clip_ttft_s: float = 15.0,
        n_min: int = 1000,
        theta: int = 1000,
        fifo_size: int = 5000,
        replay_size: int = 5000,
        replay: Literal["weighted", "lodestar", "none", "all"] = "weighted",
        freeze_after: int | None = None,
        training: Literal["background", "inline"] = "background",
        model_kind: Literal["mlp", "linear", "trees"] = "mlp",
        features: Literal["extended", "paper"] = "extended",
        model: LearnedModel | bytes | str | PathLike[str] | None = None,
        **shared: Unpack[PlacedOptions],
    ) -> Self:
        """Build the policy.

        Args:
            epsilon: Share of the requests that go to any worker.
            delta: Workers whose expected time is within this share of the least are as good.
            tie: Which of them serves: "cached" one that holds most of the prompt, since tokens that are not computed
                again delay no other request, or a "random" one, as published.
            crowding: Weight of the requests that wait behind this one: its expected time on the same worker, idle, is
                added once for each request that waits per worker, times this. 0 counts the request alone, as published;
                then requests spread as the load grows, are computed again, and add to it.
            k: Workers that prompts which begin alike are kept to while the caches are full, or as many as their share
                of the requests needs; 0 keeps them to none.
            k_slack: A request leaves them where they are expected to cost more than this share above the least; None
                never, as published.
            tau_sat: The caches are full from this mean KV use on.
            tau_ben: Prompts are kept together only if a worker holds more than so many tokens of them.
            prefix_token_length: Leading tokens by which prompts begin alike, of those without boundaries.
            max_scored: Most workers that are scored: those that hold most of the prompt, and a sample of the others.
            fallback: The policy that decides where the model cannot: a name, or a policy whose options are taken. How
                placements are remembered is this policy's own matter.
            outside: How workers outside the training data are treated: "worker" leaves those workers to the fallback,
                "fleet" leaves it the whole decision as soon as there is one such worker, as published, and "ignore"
                uses the model anyway.
            guards: Notice a model that is off, too old, or of other units. False is for experiments.
            timeout_ms: Predictions that take longer are not used, and not asked for again at once; None waits. Not with
                training="inline", which is for runs that repeat.
            max_model_age_s: Seconds after which a model is not used if samples came since; None is no limit. A model is
                stale in any case when five rounds of training are due.
            reward: The outcome that is learned: "ttft" the time to the first token; "e2e" the time to the end, for an
                output of the length that the caller expects, if given; "slo" whether the first token took longer than
                `slo_ttft_ms`.
            slo_ttft_ms: Objective of `reward="slo"` in milliseconds.
            clip_ttft_s: Longer times to a first token count as this.
            n_min: Samples before the first model.
            theta: Samples between two.
            fifo_size: The newest samples, all of which are trained on.
            replay_size: Older samples that are trained on.
            replay: Which: "weighted" those with large errors that differ most, "lodestar" as in its repository, "none",
                or "all" of them, however many.
            freeze_after: Samples after which nothing is learned any more; None never stops.
            training: "background" trains in a thread, "inline" in the call that brings the last sample for it.
            model_kind: "mlp" is Lodestar's network; "linear" and "trees" are lighter.
            features: "paper" leaves out uncached tokens and requests in flight, which the router counts itself.
            model: A model to begin with: one that was trained, a saved one, or the path of that.
            **shared: Those of `PlacedOptions`.

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

POLICIES: Final[dict[str, type[BuiltinPolicy]]]
"""The policies that come with cachelb, by name."""

ALIASES: Final[dict[str, str]]
"""Other names of some of them."""

def named(name: str) -> type[BuiltinPolicy] | None:
    """Return the class called `name`."""

def make(name: str, /, **options: Any) -> Any:
    """Build the policy called `name`.

    Args:
        name: A key of `POLICIES` or `ALIASES`, or a name that an installed distribution registers in the entry-point
            group `cachelb.policies`; underscores count as hyphens. `module:Class` imports the module: never pass on
            such a name from a request.
        **options: Options of the policy's class.

    Returns:
        The policy: a `BuiltinPolicy`, or a `Policy` of another distribution.

    Raises:
        ValueError: There is no such policy, module or class, or an option is outside its range.
        TypeError: The policy has no such option, or an option has the wrong type.
        CachelbError: The distribution that registers the name is broken.

    Example:
        >>> make("rendezvous_hash").name
        'rendezvous'
        >>> make("cache-awar")
        Traceback (most recent call last):
        ValueError: there is no policy 'cache-awar'; did you mean 'cache-aware'?
    """
