"""Policies that other distributions register under the entry-point group `cachelb.policies`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachelb.errors import CachelbError
from cachelb.policies.base import BuiltinPolicy
from cachelb.policies.custom import check

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "cachelb.policies"


def _plain(name: str) -> str:
    return name.replace("_", "-")


def names() -> list[str]:
    """List the names that are registered.

    Returns:
        The names, hyphens for underscores.
    """
    # Scanning the installed distributions takes milliseconds, so it happens only for a name that is not built in.
    from importlib.metadata import entry_points

    return sorted({_plain(entry.name) for entry in entry_points(group=GROUP)})


def make(name: str, options: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the distribution makes
    """Build a registered policy.

    Args:
        name: Its name; underscores count as hyphens.
        options: Options of its class.

    Returns:
        The policy, None if nobody registered that name.

    Raises:
        CachelbError: What is registered cannot be imported, or two distributions register the name.
        TypeError: What it makes is no policy.
    """
    from importlib.metadata import entry_points

    found = [entry for entry in entry_points(group=GROUP) if _plain(entry.name) == _plain(name)]
    if not found:
        return None
    entry = found[0]
    if len({other.value for other in found}) > 1:
        owners = " and ".join(sorted(_owner(other) for other in found))
        raise CachelbError(f"policy {name!r} is registered by {owners}; uninstall all but one")
    try:
        factory = entry.load()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise CachelbError(
            f"policy {name!r} of {_owner(entry)} cannot be imported from {entry.value!r}: {text}"
        ) from error
    if not callable(factory):
        raise TypeError(
            f"policy {name!r} of {_owner(entry)}: {entry.value!r} must be a class, not {type(factory).__name__}"
        )
    policy = factory(**options)
    if isinstance(policy, BuiltinPolicy):
        return policy
    try:
        return check(policy)
    except (TypeError, ValueError) as error:
        raise type(error)(f"policy {name!r} of {_owner(entry)}: {error}") from error


def _owner(entry: EntryPoint) -> str:
    return f"distribution {entry.dist.name!r}" if entry.dist is not None else "an unknown distribution"
