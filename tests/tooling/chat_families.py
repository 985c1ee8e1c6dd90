"""Chat templates of our own that behave as families of published ones do."""

from __future__ import annotations

from typing import Final

TURN: Final = "<|{{ m.role }}|>{{ m.content or '' }}"
CALLS: Final = "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}{% endfor %}"
TOOLS: Final = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
LAST: Final = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
THOUGHT: Final = "{% if m.reasoning %}<think>{{ m.reasoning }}</think>{% endif %}"
RECENT: Final = "{% if loop.index0 > ns.last %}" + THOUGHT + "{% endif %}"
EMPTY: Final = (
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}<think>{{ m.reasoning or '' }}</think>{% endif %}"
)
FIRST: Final = "{% set first = messages[0].role == 'system' %}{% if first %}{{ messages[0].content }}\n{% endif %}"
RAISES: Final = (
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be first') }}{% endif %}"
)


def _all(inner: str, condition: str = "") -> str:
    return LAST + "{% for m in messages" + condition + " %}" + inner + "{% endfor %}"


FAMILIES: Final[dict[str, str]] = {
    # Tools behind the system text, a preamble before it; reasoning goes with the next question.
    "after": "{% if tools %}You can call tools.\n{% endif %}"
    + FIRST
    + TOOLS
    + _all("{% if not (loop.first and first) %}" + RECENT + TURN + CALLS + "{% endif %}"),
    # Tools first; every thought stays.
    "before": TOOLS + _all(THOUGHT + TURN + CALLS),
    # Tools before the last question; reasoning is never rendered.
    "last-user": _all("{% if loop.index0 == ns.last %}" + TOOLS + "{% endif %}" + TURN + CALLS),
    # System messages are gathered at the front.
    "moves": "{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
    + TOOLS
    + _all(TURN + CALLS, " if m.role != 'system'"),
    # Tools first; a system message elsewhere is refused; an empty thought behind the last question.
    "raises": TOOLS + _all(RAISES + EMPTY + TURN + CALLS),
}
