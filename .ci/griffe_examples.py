"""Parts of the reference that Griffe leaves out: `Example:` as code, and constructors that are no `__init__`."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from griffe import Alias, Class, Extension, Function, GriffeError, Module, Object, Parameter, ParameterKind, Parameters

from cachelb.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterator

SINGULAR = re.compile(r"^(\s*)Example:$", re.MULTILINE)
RETURNS = re.compile(r"^( *)Returns:\n(?:\1 +.*\n?)+\n*", re.MULTILINE)
SHARED = re.compile(r"^( *)\*\*shared: .*$", re.MULTILINE)

ARGUMENTS = {"Router": ("PolicyArguments", "RequestArguments"), "Policy": ("PolicyArguments",)}
"""The typed dicts of the arguments of `select_worker`, by class."""


class Examples(Extension):
    """Rename the section before the docstring is parsed, and put constructors where the templates look for one."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Rename it in the docstring of `obj`, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = SINGULAR.sub(r"\1Examples:", obj.docstring.value)

    def on_package(self, *, pkg: Module, **_: object) -> None:
        """Give the classes their constructors, once stubs are merged."""
        for cls in classes(pkg):
            if "__init__" not in cls.members and (made := constructor(cls)) is not None:
                cls.set_member("__init__", made)
            select = cls.members.get("select_worker")
            if isinstance(select, Function) and cls.name in ARGUMENTS:
                annotate(select, [pkg["types"].members[name] for name in ARGUMENTS[cls.name]])


def classes(parent: Module | Class) -> Iterator[Class]:
    """List the classes below a module, and those of the extension, which only aliases lead to."""
    for member in parent.members.values():
        if isinstance(member, Module | Class):
            yield from classes(member)
        with suppress(GriffeError):
            found = member.final_target if isinstance(member, Alias) else member
            if isinstance(found, Class) and found.package is parent.package:
                yield found


def annotate(select: Function, dicts: list[Class]) -> None:
    """Give the arguments of a request their types, which the stub takes together."""
    types = {field.name: field.annotation for each in dicts for field in each.attributes.values()}
    for parameter in select.parameters:
        parameter.annotation = parameter.annotation or types.get(parameter.name)


def constructor(cls: Class) -> Function | None:
    """Make the constructor of `__new__`, or of the fields of a named tuple."""
    if "NamedTuple" in map(str, cls.bases):
        fields = [
            Parameter(
                name,
                annotation=field.annotation,
                kind=ParameterKind.positional_or_keyword,
                default=None if field.value is None else str(field.value),
            )
            for name, field in cls.attributes.items()
            if not name.startswith("_")
        ]
        return Function("__init__", parameters=Parameters(*fields))
    new = cls.members.get("__new__")
    if not isinstance(new, Function):
        return None
    parameters = list(new.parameters)
    shared = {policy.__name__: policy.shared for policy in POLICIES.values()}.get(cls.name)
    if shared is not None:
        parameters = [p for p in parameters if p.kind is not ParameterKind.var_keyword] + [
            Parameter(name, annotation=kind, kind=ParameterKind.keyword_only, default=repr(default))
            for name, kind, default, _ in shared
        ]
        if new.docstring is not None:
            texts = "\n".join(rf"\1{name}: {' '.join(text.split())}" for name, _, _, text in shared)
            new.docstring.value = SHARED.sub(texts, new.docstring.value)
    if new.docstring is not None:
        new.docstring.value = RETURNS.sub("", new.docstring.value)
    return Function("__init__", parameters=Parameters(*parameters), docstring=new.docstring)
