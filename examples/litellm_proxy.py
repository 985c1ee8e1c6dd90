"""cachelb in the LiteLLM proxy: put this file beside `litellm_proxy.yaml`, run `litellm --config litellm_proxy.yaml`.

Its `litellm_settings.callbacks` names the object below. Requests to the group `llama` go to the deployment that holds
most of their prompt; health checks, cooldowns, retries, keys and budgets stay LiteLLM's.
"""

from __future__ import annotations

from cachelb.integrations.litellm import CachelbCallback
from cachelb.sources import MetricsSource

callback = CachelbCallback()
callback.router.attach(MetricsSource(url=callback.metrics_url))  # what requests from elsewhere do to the engines
callback.export()  # on the proxy's own page, /metrics
