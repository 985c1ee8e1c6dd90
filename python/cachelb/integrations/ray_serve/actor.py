"""The actors: the one through which the routers of a deployment share placements, and the tree for Ray's router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from cachelb.integrations.ray_serve.placements import PlacementStore
from cachelb.integrations.ray_serve.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from ray.serve._private.common import DeploymentID

    from cachelb.integrations.ray_serve.sharing import Exchange

NAMESPACE = "cachelb"
"""The Ray namespace of the actors."""


def actor_name(deployment: str, application: str) -> str:
    """Name the actor of a deployment.

    Args:
        deployment: Name of the deployment.
        application: Name of its application.

    Returns:
        The name, within `NAMESPACE`.

    Example:
        >>> actor_name("LLM", "chat")
        'placements:chat:LLM'
    """
    return f"placements:{application}:{deployment}"


def connector(deployment_id: DeploymentID, max_bytes: int) -> Callable[[], Exchange]:
    """Prepare to find the actor of a deployment, or to start it.

    It outlives the routers, so that those that start anew get the state, and ends with Serve.

    Args:
        deployment_id: The deployment.
        max_bytes: Bytes of placements it keeps, if this starts it.

    Returns:
        A function that blocks until the actor is named, and returns how to call it.
    """
    name = actor_name(deployment_id.name, deployment_id.app_name)

    def connect() -> Exchange:
        _check_ray()
        # First, so that nothing starts an actor anew that ended with Serve.
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        remote: Any = ray.remote(PlacementStore)
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

        def exchange(*arguments: Any) -> Any:  # noqa: ANN401 - what Exchange says
            _check_ray()
            return handle.exchange.remote(*arguments)

        return exchange

    return connect


def _check_ray() -> None:
    """Keep a router that outlives Ray from starting a cluster of its own: any call of Ray's would."""
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
    """
    # Where that router looks, and starts one of its own only if there is none.
    namespace = "::".join(part for part in (SERVE_NAMESPACE, application, deployment) if part)
    options = {"name": "LlmPrefixTreeActor", "namespace": namespace, "get_if_exists": True, "lifetime": "detached"}
    return PrefixTreeActor.options(**options).remote()
