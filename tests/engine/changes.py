"""One change of a request body at a random place."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tests.engine.talks import Body, Talks, Texts


def changed(talks: Talks, body: Body) -> Body:
    """Return a copy with one change; what it finds nothing to change in is the same."""
    if isinstance(talks, Texts):
        return talks.changed(body)
    other = deepcopy(body)
    luck = talks.luck
    match luck.randrange(10):
        case 0 | 1:
            _change_text(talks, other)
        case 2 | 3 | 4:
            _change_list(talks, other)
        case 5 | 6 | 7:
            _change_object(talks, other)
        case 8 if talks.chance(0.5):
            other |= luck.choice(talks.options)
        case _:
            other[talks.turns].append(talks.turn())
    return other


def _change_text(talks: Talks, body: Body) -> None:
    places = [
        (value, key)
        for _, value in _walk(body)
        if isinstance(value, dict | list)
        for key in (value if isinstance(value, dict) else range(len(value)))
        if isinstance(value[key], str) and "#" in value[key]
    ]
    found, key = talks.luck.choice(places)
    text = found[key]
    cut = talks.luck.randint(text.index(";") + 1, len(text))
    found[key] = talks.luck.choice([text[:cut], text[:cut] + "!" + text[cut:], talks.text()])


def _change_list(talks: Talks, body: Body) -> None:
    lists = [(name, value) for name, value in _walk(body) if isinstance(value, list) and name != "required"]
    name, found = talks.luck.choice(lists)
    at = talks.luck.randint(0, len(found))
    match talks.luck.randrange(3):
        case 0:
            found.insert(at, talks.fresh(name))
        case 1:
            del found[at : at + talks.luck.randint(1, 3)]
        case _:
            talks.luck.shuffle(found)


def _change_object(talks: Talks, body: Body) -> None:
    objects = [
        value
        for name, value in _walk(body)
        if isinstance(value, dict) and value and name not in ("", "chat_template_kwargs")
    ]
    found = talks.luck.choice(objects)
    match talks.luck.randrange(4):
        case 0:
            del found[talks.luck.choice(list(found))]
        case 1:
            found.update(talks.luck.choice(talks.extras))
        case 2:
            for each in objects:
                if "reasoning" in each:
                    each["thinking"] = each.pop("reasoning")
        case _:
            # Templates look for thoughts in the text of the assistant only.
            turns = [turn for turn in body[talks.turns] if "role" in turn and "</think>" not in str(turn)]
            if turns:
                talks.luck.choice(turns)["role"] = talks.luck.choice(talks.roles)


def _walk(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    yield name, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, name)
