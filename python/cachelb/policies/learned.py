"""Learn what requests cost, and send each where it is expected to cost least."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb._core import LearnedModel
from cachelb.policies.base import BuiltinPolicy
from cachelb.types import LearnedStats

if TYPE_CHECKING:
    from os import PathLike
    from typing import Any, Self

    from cachelb.policies.base import Clock, Key


class Learned(BuiltinPolicy):
    """Send a request where a model expects the shortest time to its first token; the model learns from every answer.

    After Lodestar (Lim et al., 2026). What is known of a request and of a worker when it is routed (how much of the
    prompt is cached there, what runs and waits, tokens in flight, KV use, the GPU) and the time that its first token
    then took are a sample. After `n_min` of them a small network is trained, in a thread of its own, and again after
    every `theta`. From then on a request goes to one of the workers that are within `delta` of the least expected
    time (`learned`, `learned-tie`); a share of `epsilon` goes anywhere, to be learned from (`explore`).

    As long as there is no model (`cold-start`), and wherever it cannot be trusted, `fallback` decides, and the reason
    says why: `ood` for numbers outside all that it was trained on, `stale-load` for reports that are too old,
    `model-drift` when its errors grew, `model-stale`, `model-timeout`, `model-error`, `normaliser-mismatch`. While the
    KV caches are full, prompts that begin alike are kept to `k` workers (`k-filter` where that made the difference).

    It is no better than what it has seen: in simulations it was 10 times behind the best rule on agents new to it.

    Only first tokens teach: call `Decision.on_first_token`, or `on_tokens`. Requests that fail teach nothing. Give GPU
    models with `Router.add_worker(gpu=)` where workers differ, and load reports (`Router.update_load`): without them
    the model sees only what was booked here.

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

    name: ClassVar[str] = "learned"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

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
        tau_ben: float = 100,
        prefix_token_length: int = 128,
        max_scored: int = 256,
        fallback: str | BuiltinPolicy = "prefix-cache-and-load",
        outside: Literal["worker", "fleet", "ignore"] = "worker",
        guards: bool = True,
        timeout_ms: float | None = 10,
        max_model_age_s: float | None = None,
        reward: Literal["ttft", "e2e", "slo"] = "ttft",
        slo_ttft_ms: float | None = None,
        clip_ttft_s: float = 15,
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
        block_size: int = 16,
        max_blocks_per_worker: int = 100_000,
        ttl_s: float | None = None,
        hash_seed: int = 1337,
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            epsilon: Share of the requests that go to any worker.
            delta: Workers whose expected time is within this share of the least are as good.
            tie: Which of them serves: "cached" one that holds most of the prompt, since what is not computed again
                keeps nobody waiting, or a "random" one, as published.
            crowding: How much those count that a request keeps waiting: what it would take on the same worker, idle,
                counts as often as requests wait per worker, times this. 0 minds the request alone, as published; then
                requests spread as the load grows, are computed again, and make more of it.
            k: Workers that prompts which begin alike are kept to while the caches are full, or as many as their share
                of the requests needs; 0 keeps them to none.
            k_slack: A request leaves them where they are expected to cost more than this share above the least; None
                never, as published.
            tau_sat: The caches are full from this mean KV use on.
            tau_ben: Prompts are kept together only if a worker holds more than so many tokens of them.
            prefix_token_length: Leading tokens by which prompts begin alike, of those without boundaries.
            max_scored: Of more workers, those that hold most and a sample of the others are scored, so many in all.
            fallback: The policy that decides where the model cannot: a name, or a policy whose options are taken. How
                placements are remembered is this policy's own matter.
            outside: What happens where the model was not trained: "worker" leaves the workers concerned to the
                fallback, "fleet" leaves it the whole decision as soon as there is one such worker, as published, and
                "ignore" asks the model anyway.
            guards: Notice a model that is off, too old, or of other units. False is for experiments.
            timeout_ms: Predictions that take longer are not used, and not asked for again at once; None waits. Not with
                training="inline", which is for runs that repeat.
            max_model_age_s: Seconds after which a model is not used if samples came since; None is no limit. A model is
                stale in any case when five rounds of training are due.
            reward: What is learned: "ttft" the time to the first token; "e2e" the time to the end, of an output as long
                as the caller expects if it says so; "slo" whether the first token took longer than `slo_ttft_ms`.
            slo_ttft_ms: See there.
            clip_ttft_s: Longer times to a first token count as this.
            n_min: Samples before the first model.
            theta: Samples between two.
            fifo_size: The newest samples, all of which are trained on.
            replay_size: Older samples that are trained on.
            replay: Which: "weighted" those with large errors that differ most, "lodestar" as in its repository,
                "none", or "all" of them, however many.
            freeze_after: Samples after which nothing is learned any more; None never stops.
            training: "background" trains in a thread, "inline" in the call that brings the last sample for it.
            model_kind: "mlp" is Lodestar's network; "linear" and "trees" are lighter.
            features: "paper" leaves out uncached tokens and requests in flight, which follow from what a router knows.
            model: A model to begin with: one that was trained, a saved one, or the path of that.
            block_size: Tokens per block, as the engines have it.
            max_blocks_per_worker: Blocks one worker's cache holds; the least recently used leave first.
            ttl_s: Seconds a placement is believed, None until evicted.
            hash_seed: Seed of the block hashes. Hashes given as `blocks=` must have been made with the same one.
            seed: Seed of ties, exploration and training, None draws one.
            key: Function from a worker to its unique name.
            clock: Function that returns monotonic seconds, None is the system's.
            booking_ttl_s: Seconds without a sign of life after which a booking no longer counts as load.

        Returns:
            The policy.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option is outside its range, `fallback` is no policy or a learned one itself, or `model` is
                no saved model.
            OSError: The saved model cannot be read.
        """
        options: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "crowding": crowding,
            "tie": tie,
            "k": k,
            "k_slack": k_slack,
            "tau_sat": tau_sat,
            "tau_ben": tau_ben,
            "prefix_token_length": prefix_token_length,
            "max_scored": max_scored,
            "fallback": _fallback(fallback),
            "outside": outside,
            "guards": guards,
            "timeout_ms": timeout_ms,
            "max_model_age_s": max_model_age_s,
            "reward": reward,
            "slo_ttft_ms": slo_ttft_ms,
            "clip_ttft_s": clip_ttft_s,
            "n_min": n_min,
            "theta": theta,
            "fifo_size": fifo_size,
            "replay_size": replay_size,
            "replay": replay,
            "freeze_after": freeze_after,
            "training": training,
            "model_kind": model_kind,
            "features": features,
            "model": _model(model),
            "block_size": block_size,
            "max_blocks_per_worker": max_blocks_per_worker,
            "ttl_s": ttl_s,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)

    def learned_stats(self) -> LearnedStats:
        """Return what was learned so far, and how good it is."""
        (stats,) = self._learned()
        return LearnedStats(**stats)

    def save_model(self, path: str | PathLike[str]) -> None:
        """Write the current model to a file, for `model=` of another policy.

        Args:
            path: The file; one that exists is replaced.

        Raises:
            ValueError: There is no model yet.
            OSError: The file cannot be written.
        """
        write_model(self._learned_model(), path)


def write_model(model: bytes | None, path: str | PathLike[str]) -> None:
    """Write a model to a file.

    Args:
        model: Its bytes, None without one.
        path: The file; one that exists is replaced.

    Raises:
        ValueError: There is no model.
        OSError: The file cannot be written.
    """
    if model is None:
        raise ValueError("there is no model yet: the first one is trained after n_min samples")
    # Whoever reads it meanwhile finds the old one or the new one, not half of either.
    target = Path(path)
    beside = target.with_name(f".{target.name}.new")
    beside.write_bytes(model)
    beside.replace(target)


def _model(model: LearnedModel | bytes | str | PathLike[str] | None) -> bytes | None:
    if isinstance(model, LearnedModel):
        return model.to_bytes()
    return model if model is None or isinstance(model, bytes) else Path(model).read_bytes()


def _fallback(policy: object) -> tuple[str, dict[str, Any]]:
    """Return the native rule and the options of a fallback."""
    from cachelb import policies

    if isinstance(policy, str):
        policy = policies.make(policy)
    if not isinstance(policy, BuiltinPolicy):
        raise TypeError(f"fallback must be a built-in policy or the name of one, not {type(policy).__name__}")
    rule, options = policy._native  # noqa: SLF001 - of the base class
    if rule == Learned.name:
        raise ValueError("fallback must not be a learned policy: it decides where the model cannot")
    return rule, options
