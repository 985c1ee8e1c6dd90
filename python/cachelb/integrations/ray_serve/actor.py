"""The actors through which routers share state, and the tree for Ray's router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from cachelb.integrations.ray_serve.messages import MessageLog
from cachelb.integrations.ray_serve.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachelb.integrations.ray_serve.carrier import Trade

NAMESPACE = "cachelb"
"""The Ray namespace of the actors."""

_CALL_S = 5.0


def trader(name: str, max_bytes: int, *, ends_with_serve: bool) -> Callable[[], Trade]:
    """Return a blocking function that finds or starts the actor through which routers exchange messages.

    It returns how to call the actor, which outlives the routers, so that new ones get the messages. `max_bytes` of them
    is its limit if this starts it.
    """

    def connect() -> Trade:
        try:
            handle = _detached(name, max_bytes, ends_with_serve=ends_with_serve)
        except (RayError, ValueError) as error:  # that no actor has a name is a ValueError
            raise ConnectionError(f"there is no actor: {type(error).__name__}") from error

        def trade(*arguments: Any) -> Any:  # noqa: ANN401 - as in Trade
            _check_ray()
            try:
                return ray.get(handle.trade.remote(*arguments), timeout=_CALL_S)
            except RayError as error:
                raise ConnectionError(f"the actor does not answer: {type(error).__name__}") from error
            except SystemExit as error:  # what Ray raises in threads that wait while it shuts down
                raise ConnectionError("Ray was shut down") from error

        return trade

    return connect


def _detached(name: str, max_bytes: int, *, ends_with_serve: bool) -> Any:  # noqa: ANN401 - an actor handle
    """Find or start an actor that outlives the process that starts it."""
    _check_ray()
    # First, so that an actor that ended with Serve is not restarted.
    controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE) if ends_with_serve else None
    remote: Any = ray.remote(MessageLog)
    handle = remote.options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
    ).remote(max_bytes)
    # As Ray's own routers have it. Older Serve has no such thing: the actor ends with the cluster then.
    if (end_with_serve := getattr(controller, "_register_shutdown_cleanup_actor", None)) is not None:
        end_with_serve.remote(handle)
    return handle


def _check_ray() -> None:
    """Prevent a router that outlives Ray from starting a cluster of its own, as any call of Ray's would."""
    if not ray.is_initialized():
        raise ConnectionError("Ray was shut down")


PrefixTreeActor: Any = ray.remote(PrefixTree)
"""`PrefixTree` as an actor class, in the place of Ray's class of this name."""


def start_prefix_tree(deployment: str, application: str = "default") -> Any:  # noqa: ANN401 - an actor handle
    """Start the tree that Ray's own `PrefixCacheAffinityRouter` then finds and uses instead of its own.

    Call it before the deployment runs. The actor is detached; `ray.kill` ends it, or the end of the cluster.

    Args:
        deployment: Name of the deployment.
        application: Name of its application.

    Returns:
        The actor's handle.

    Example:
        >>> from cachelb.integrations.ray_serve import start_prefix_tree
        >>> tree = start_prefix_tree("LLMServer")  # doctest: +SKIP
    """
    # Where that router looks, and starts one of its own only if there is none.
    namespace = "::".join(part for part in (SERVE_NAMESPACE, application, deployment) if part)
    options = {"name": "LlmPrefixTreeActor", "namespace": namespace, "get_if_exists": True, "lifetime": "detached"}
    return PrefixTreeActor.options(**options).remote()
