"""The classes of the policies whose rules run natively, made of what the native half declares."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from textwrap import fill
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from cachelb._core import LearnedModel, policy_table
from cachelb._core import Policy as NativePolicy
from cachelb.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from inspect import Parameter, Signature
    from typing import Self

    from cachelb._core import FleetView, RequestView

Key: TypeAlias = "Callable[[Any], str] | None"
Clock: TypeAlias = "Callable[[], float] | None"

Option: TypeAlias = "tuple[str, str, Any, str]"
"""Name, type, default and text of an option."""

CALLABLES: tuple[Option, ...] = (
    ("key", "Key", None, "Function from a worker to its unique name, for workers without `.url` or `.id`: dicts, say."),
    ("clock", "Clock", None, "Function that returns monotonic seconds, 0 or more; None is the system's."),
)
"""Options that every policy takes and no configuration can hold."""

POLICIES: dict[str, type[BuiltinPolicy]] = {}
"""The policies that come with cachelb, by name; the package fills it in."""

_WIDTH = 120


class _LazySignature:
    """The signature of a policy's constructor, made when it is asked for: `inspect` is slow to import."""

    def __get__(self, policy: object, owner: type[BuiltinPolicy]) -> Signature:
        """Make the signature of `owner`."""
        from inspect import Parameter, Signature

        def keyword(option: Option) -> Parameter:
            name, annotation, default, _ = option
            return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

        shared = Parameter("shared", Parameter.VAR_KEYWORD, annotation="Unpack[SharedOptions]")
        return Signature([*map(keyword, owner.options), shared])


class BuiltinPolicy(NativePolicy):
    """A policy whose rule runs natively.

    Workers are your own objects: `str`, objects with a `.url` or `.id`, or anything else with `key=`. They are only
    handed back. A new key is registered on sight; a worker whose `healthy`, `is_healthy` or `ready` (an attribute, a
    method or a dict entry) is false is passed over. A worker's key must not change while it is in use.

    Beside its own options every policy takes `seed`, `key`, `clock` and `booking_ttl_s`; those that know a prompt by
    its blocks take `block_size`, those that hash all of them `hash_seed`, and those that remember placements
    `max_blocks_per_worker` and `ttl_s`.

    Attributes:
        name: Name of the policy in configurations.
        needs: Arguments of `select_worker` that the policy needs; without them it falls back to load, with a reason of
            its own.
        options: Its own options: name, type, default and text of each.
        shared: Options that it has in common with others, likewise.
        option_aliases: Other spellings of options that the class takes, and the options they stand for.

    Example:
        >>> from cachelb.policies import BuiltinPolicy, CacheAware
        >>> policy: BuiltinPolicy = CacheAware(seed=1)
        >>> policy.name, policy.select_worker(["gpu0"], tokens=range(64)).worker
        ('cache-aware', 'gpu0')
        >>> [name for name, *_ in CacheAware.shared]
        ['seed', 'booking_ttl_s', 'block_size', 'hash_seed', 'max_blocks_per_worker', 'ttl_s', 'key', 'clock']
    """

    name: str
    needs: frozenset[str] = frozenset()
    options: ClassVar[tuple[Option, ...]] = ()
    shared: ClassVar[tuple[Option, ...]] = ()
    option_aliases: ClassVar[Mapping[str, str]] = MappingProxyType({})
    _repr: str
    __signature__ = _LazySignature()

    def __new__(cls, *, key: Key = None, clock: Clock = None, **options: Any) -> Self:  # noqa: ANN401 - of any policy
        """Build the policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """
        known = cls.keywords()
        for option in options:
            if option not in known:
                raise _unknown_option(cls.name, option, known)
        policy = super().__new__(cls, cls.name, options, key=key, clock=clock)
        texts = ((name, _shown(value)) for name, value in (*options.items(), ("key", key), ("clock", clock)))
        policy._repr = ", ".join(f"{name}={text}" for name, text in texts if text != _shown(known[name][2]))
        return policy

    def __repr__(self) -> str:
        """Show the constructor's call, with what is not the default; functions by name."""
        return f"{type(self).__name__}({self._repr})"

    def choose(self, request: RequestView, fleet: FleetView) -> int:  # noqa: ARG002 - as of any policy
        """Refuse: a router runs the rule natively, and asks only policies of your own."""
        raise TypeError(
            f"{self.name!r} runs natively: give it to Router(policy=...), or call select_worker(workers, ...)"
        )

    @classmethod
    def keywords(cls) -> dict[str, Option]:
        """List what the constructor takes, by name.

        Example:
            >>> from cachelb.policies import PowerOfTwo
            >>> list(PowerOfTwo.keywords())
            ['choices', 'load', 'seed', 'booking_ttl_s', 'key', 'clock']
        """
        return {option[0]: option for option in (*cls.options, *cls.shared)}


def owners_of_options() -> dict[str, list[str]]:
    """List the classes that have an option, by name of the option."""
    owners: dict[str, list[str]] = {}
    for policy in POLICIES.values():
        for name in policy.keywords():
            owners.setdefault(name, []).append(policy.__name__)
    return owners


def _unknown_option(policy: str, option: str, known: Iterable[str]) -> TypeError:
    """Make the error for an option that a policy lacks, which names those that have it, or the nearest one."""
    from difflib import get_close_matches

    owners = owners_of_options()
    lacks = f"policy {policy!r} has no option {option!r}"
    near = option if option in owners else next(iter(get_close_matches(option, [*known, *owners], n=1)), None)
    if near is None or near in known:
        return TypeError(f"{lacks}{did_you_mean(option, known)}")
    text = f"an option of {', '.join(owners[near][:4])}: {owners[near][0]}({near}=...)"
    return TypeError(f"{lacks}; it is {text}" if near == option else f"{lacks}; did you mean {near}, {text}")


def _shown(value: Any) -> str:  # noqa: ANN401 - of any option
    """Write a value of an option as an expression; a function is named."""
    if isinstance(value, LearnedModel):
        return f"LearnedModel.from_bytes({value.to_bytes()!r})"
    if isinstance(value, PathLike):
        return repr(fspath(value))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_shown(each)}' for name, each in value.items())}}}"
    name: str | None = getattr(value, "__qualname__", None)
    return name or repr(value.tolist() if hasattr(value, "tolist") else value)


def classes(bases: Mapping[str, type[BuiltinPolicy]]) -> Iterator[type[BuiltinPolicy]]:
    """Make the classes of all policies, some with methods of their own: `bases`, by name of the policy."""
    for row in policy_table():
        own = tuple(row["options"])
        members = {
            "__doc__": f"{row['text']}\n{_arguments(own)}",
            "__module__": "cachelb.policies",
            "name": row["name"],
            "needs": frozenset(row["needs"]),
            "options": own,
            "shared": (*row["shared"], *CALLABLES),
            "option_aliases": MappingProxyType(dict(row["aliases"])),
        }
        yield type(row["class"], (bases.get(row["name"], BuiltinPolicy),), members)


def _arguments(options: tuple[Option, ...]) -> str:
    """Section `Args` of a docstring."""
    if not options:
        return ""
    texts = (f"{name}: {' '.join(text.split())}" for name, _, _, text in options)
    lines = (fill(text, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8) for text in texts)
    return "\n".join(["Args:", *lines, ""])
