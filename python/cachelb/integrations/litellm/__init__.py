"""LiteLLM: a callback that picks, of the deployments that LiteLLM finds healthy, the one to use.

LiteLLM asks `async_filter_deployments` with those that its own rules left, and uses the only one it gets back: health
checks, cooldowns and blocked deployments stay LiteLLM's. The filters that come after are thought of here, because a
list of one deployment is easily emptied: `order`, and deployments that LiteLLM excludes from a retry.

The end of a request comes from LiteLLM's events, by the id of the call. A request that is given up has no event: it is
over when LiteLLM drops its logging object, and failing that after `deadline_s`.
"""

from __future__ import annotations

from cachelb.integrations.litellm.callback import CachelbCallback

__all__ = ["CachelbCallback"]
