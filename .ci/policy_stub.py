"""Writes python/cachelb/policies/__init__.pyi, the types of classes that are made at import; `--check` only compares.

usage: policy_stub.py [--check]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any

from cachelb.policies import ALIASES, POLICIES, BuiltinPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

STUB = Path(__file__).parents[1] / "python" / "cachelb" / "policies" / "__init__.pyi"

HEAD = '''\
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

'''

TAIL = '''
POLICIES: Final[dict[str, type[BuiltinPolicy]]]
"""The policies that come with cachelb, by name."""

ALIASES: Final[dict[str, str]]
"""Other names of some of them."""

'''


def literal(words: Iterable[str]) -> str:
    """Type of some words."""
    return f"Literal[{', '.join(f'{word!r}' for word in words)}]"


def fields(options: Iterable[tuple[str, str, Any, str]]) -> str:
    """Keys of a `TypedDict`."""

    def field(name: str, kind: str, text: str) -> str:
        about = fill(f'"""{" ".join(text.split())}', 108)
        return f'{name}: {kind}\n{about}"""\n'

    return indent("".join(field(name, kind, text) for name, kind, _, text in options), "    ")


def typed_dict(name: str, base: str, text: str, options: Iterable[tuple[str, str, Any, str]]) -> str:
    """Class of options that may all be left out."""
    return f'@type_check_only\nclass {name}({base}, total=False):\n    """{text}"""\n\n{fields(options)}\n'


LEVELS = ("Shared", "Keyed", "Hashed", "Placed")
TEXTS = (
    "Options of every policy.",
    "Options of a policy that knows a prompt by its blocks.",
    "Options of a policy that hashes all blocks of a prompt.",
    "Options of a policy that remembers placements.",
)
# How many options there are at each level, without `key` and `clock`.
COUNTS = (2, 3, 4, 6)


def shared_dicts() -> str:
    """Classes of the options that policies share, each after the one that it extends."""
    every = max((policy.shared for policy in POLICIES.values()), key=len)
    natively, callables = every[: COUNTS[-1]], every[COUNTS[-1] :]
    parts, base, begin = [], "TypedDict", 0
    for level, text, end in zip(LEVELS, TEXTS, COUNTS, strict=True):
        own = (*natively[begin:end], *(callables if not begin else ()))
        parts.append(typed_dict(f"{level}Options", base, text, own))
        base, begin = f"{level}Options", end
    return "".join(parts)


def policy_class(policy: type[BuiltinPolicy]) -> str:
    """One policy."""
    count = len(policy.shared) - 2
    shared = f"{LEVELS[COUNTS.index(count)]}Options"
    about, _, _ = (policy.__doc__ or "").partition("\nArgs:\n")
    keywords = "".join(f"{name}: {kind} = {default!r}, " for name, kind, default, _ in policy.options)
    star = "*, " if policy.options else ""
    texts = (
        fill(f"{name}: {' '.join(text.split())}", 108, subsequent_indent=" " * 4) for name, _, _, text in policy.options
    )
    args = indent("\n".join([*texts, f"**shared: Those of `{shared}`."]), " " * 12)
    base = policy.__bases__[0].__name__
    return f'''\
class {policy.__name__}({base}):
    """{indent(about.strip(), "    ").strip()}
    """

    def __new__(cls, {star}{keywords}**shared: Unpack[{shared}]) -> Self:
        """Build the policy.

        Args:
{args}

        Returns:
            The policy.

        Raises:
            TypeError: There is no such option, or one has the wrong type.
            ValueError: An option is outside its range, or does not go with another.
        """

'''


def stub() -> str:
    """The file."""
    from inspect import getdoc

    from cachelb import policies

    names = literal([*POLICIES, *ALIASES])
    make = indent(getdoc(policies.make) or "", "    ").strip()
    text = "".join(
        [
            HEAD,
            f'PolicyName: TypeAlias = {names}\n"""Names of the policies that come with cachelb."""\n\n',
            shared_dicts(),
            *map(policy_class, POLICIES.values()),
            TAIL,
            'def named(name: str) -> type[BuiltinPolicy] | None:\n    """Return the class called `name`."""\n\n',
            f'def make(name: str, /, **options: Any) -> Any:\n    """{make}\n    """\n',
        ]
    )
    command = [str(Path(sys.executable).with_name("ruff")), "format", "--quiet", "--stdin-filename", str(STUB), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    made = stub()
    if "--check" not in sys.argv[1:]:
        STUB.write_text(made, "utf-8")
    elif not STUB.is_file() or STUB.read_text("utf-8") != made:
        sys.exit(f"{STUB.name} is not what the declarations say; run `make stubs`")
