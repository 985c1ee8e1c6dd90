"""Policies of others: registered under the entry-point group `cachelb.policies`, or named as `module:Class`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachelb.errors import CachelbError, did_you_mean
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
        The policy, None if that name is not registered.

    Raises:
        CachelbError: The registered object cannot be imported, or two distributions register the name.
        TypeError: It makes an object that is no policy.
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
    return _checked(factory(**options), f"policy {name!r} of {_owner(entry)}")


def imported(name: str, options: dict[str, Any]) -> Any:  # noqa: ANN401 - of any class
    """Build a policy that is named `module:Class`. This runs the module, so no name from outside may get here.

    Args:
        name: The module and the class in it.
        options: Options of the class.

    Returns:
        The policy.

    Raises:
        ValueError: The module cannot be imported, or has no such class.
        TypeError: The class is none of a policy, or has no such option.
    """
    from importlib import import_module

    module, _, attribute = name.partition(":")
    try:
        found = import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            advice = "; install it, or start in the folder that holds it"
            raise ValueError(f"policy {name!r}: there is no module {error.name!r}{advice}") from error
        text = f"{type(error).__name__}: {error}"
        raise ValueError(f"policy {name!r}: module {module!r} cannot be imported: {text}") from error
    policy = getattr(found, attribute, None)
    if policy is None:
        hint = did_you_mean(attribute, (each for each, value in vars(found).items() if isinstance(value, type)))
        raise ValueError(f"policy {name!r}: module {module!r} has no class {attribute!r}{hint}")
    if not isinstance(policy, type) or not (issubclass(policy, BuiltinPolicy) or hasattr(policy, "choose")):
        kind = f"the class {attribute}" if isinstance(policy, type) else type(policy).__name__
        raise TypeError(f"policy {name!r}: must be a class with choose(request, fleet), not {kind}")
    return _checked(policy(**options), f"policy {name!r}")


def _checked(policy: object, label: str) -> Any:  # noqa: ANN401 - of any class
    """Refuse an object that is no policy."""
    if isinstance(policy, BuiltinPolicy):
        return policy
    try:
        return check(policy)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{label}: {error}") from error


def _owner(entry: EntryPoint) -> str:
    return f"distribution {entry.dist.name!r}" if entry.dist is not None else "an unknown distribution"
