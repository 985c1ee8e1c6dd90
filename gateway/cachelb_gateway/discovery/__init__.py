"""Sources of workers: Kubernetes, DNS and files keep the fleet of a router.

Example:
    >>> from cachelb_gateway.discovery import KubernetesWorkers, from_text
    >>> source = KubernetesWorkers(service="vllm", namespace="llm", port="http")  # router.attach(source)
    >>> from_text("file:/etc/cachelb/workers.json")
    <FileWorkers file:/etc/cachelb/workers.json>
"""

from __future__ import annotations

from cachelb.types import DiscoveryStats
from cachelb_gateway.discovery.addresses import DiscoveryError
from cachelb_gateway.discovery.base import Findings, PolledWorkers, WorkerSource
from cachelb_gateway.discovery.dns import DnsWorkers
from cachelb_gateway.discovery.file import FileWorkers
from cachelb_gateway.discovery.kubernetes import KubernetesWorkers
from cachelb_gateway.discovery.text import from_text

__all__ = [
    "DiscoveryError",
    "DiscoveryStats",
    "DnsWorkers",
    "FileWorkers",
    "Findings",
    "KubernetesWorkers",
    "PolledWorkers",
    "WorkerSource",
    "from_text",
]
