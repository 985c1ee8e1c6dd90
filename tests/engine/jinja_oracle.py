"""Renders chats as transformers does, in the engine's environment: a line of JSON each, in and out."""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    """Answer lines until there are no more; null is a chat that the template refuses."""
    from jinja2 import TemplateError

    utils = importlib.import_module("transformers.utils.chat_template_utils")

    for line in sys.stdin:
        template, messages, tools, prompt = json.loads(line)
        try:
            (text,), _ = utils.render_jinja_template(
                conversations=[messages], tools=tools or None, chat_template=template, add_generation_prompt=prompt
            )
        except (TemplateError, TypeError, ValueError):
            text = None
        sys.stdout.write(json.dumps(text) + "\n")


if __name__ == "__main__":
    main()
