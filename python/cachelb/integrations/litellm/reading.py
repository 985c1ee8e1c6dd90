"""Reads LiteLLM's own objects: candidate deployments, tried deployments, the engine's token counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachelb.answers import Usage


def candidates(deployments: Sequence[dict[str, Any]], request: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return by id the deployments that the filters after the callback would keep; none if one has no id."""
    excluded = request.get("_excluded_deployment_ids") or ()
    pool: dict[str, dict[str, Any]] = {}
    orders: dict[str, int] = {}
    for deployment in deployments:
        info = deployment.get("model_info") or {}
        key = info.get("id")
        if not isinstance(key, str):
            return {}
        if key in excluded:
            continue
        pool[key] = deployment
        order = deployment.get("litellm_params", {}).get("order")
        order = info.get("order") if order is None else order
        if order is not None:
            orders[key] = order
    wanted = request.get("_target_order")
    if wanted is None and orders:
        wanted = min(orders.values())
    return pool if wanted is None else {key: pool[key] for key, order in orders.items() if order == wanted}


def tags(deployment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tags and patterns by which LiteLLM may filter a deployment after the callback."""
    params = deployment.get("litellm_params", {})
    if "tags" not in params and "tag_regex" not in params:
        return ()
    return *map(str, params.get("tags") or ()), "", *map(str, params.get("tag_regex") or ())


def tried(request: Mapping[str, Any]) -> set[str]:
    """Return the ids of the deployments that LiteLLM tried for this request; it records each before a retry."""
    found: set[str] = set(request.get("_retry_skipped_deployment_ids") or ())
    notes = metadata(request)
    retries, records = notes.get("attempted_retries"), notes.get("previous_models")
    if isinstance(retries, int) and retries > 0 and isinstance(records, list | tuple):
        # Callers may use one metadata dict for many requests, and then it holds records of earlier ones.
        keys = (record.get("deployment_id") for record in records[-retries:] if isinstance(record, dict))
        found.update(key for key in keys if isinstance(key, str))
    return found


def metadata(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the metadata of a request, which some endpoints of the proxy keep under another name."""
    found = request.get("litellm_metadata") or request.get("metadata")
    return found if isinstance(found, dict) else {}


def is_prompt_list(content: object) -> bool:
    """Return whether the content of the only message is a prompt of `/v1/completions`, not a list of message parts.

    LiteLLM makes such a message of the prompt of a text completion.
    """
    return isinstance(content, list) and bool(content) and isinstance(content[0], int | str | list)


def usage(response: object, *, streamed: bool) -> Usage:
    """Read the engine's own counts. LiteLLM's, by another tokenizer where a stream has no usage, are left out."""
    usage = getattr(response, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    counts = {
        "cached_tokens": _count(details, "cached_tokens"),
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "output_tokens": _count(usage, "completion_tokens"),
    }
    if streamed and counts["cached_tokens"] is None:
        return {}
    return cast("Usage", {name: count for name, count in counts.items() if count is not None})


def _count(holder: object, name: str) -> int | None:
    value = getattr(holder, name, None)
    return value if isinstance(value, int) else None
