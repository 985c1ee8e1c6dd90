"""Let the reference show `Example:` as code: Griffe knows that section of Google's style by its plural only."""

from __future__ import annotations

import re

from griffe import Extension, Object

SINGULAR = re.compile(r"^(\s*)Example:$", re.MULTILINE)


class Examples(Extension):
    """Rename the section before the docstring is parsed."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Rename it in the docstring of `obj`, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = SINGULAR.sub(r"\1Examples:", obj.docstring.value)
