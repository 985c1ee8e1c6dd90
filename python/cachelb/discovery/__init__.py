"""Sources of workers: Kubernetes, DNS and files keep the fleet of a router.

Example:
    >>> from cachelb.discovery import KubernetesWorkers, from_text
    >>> source = KubernetesWorkers(service="vllm", namespace="llm", port="http")  # router.attach(source)
    >>> from_text("file:/etc/cachelb/workers.json")
    <FileWorkers file:/etc/cachelb/workers.json>
"""

from __future__ import annotations

from cachelb.discovery.base import Findings, PolledWorkers, WorkerSource
from cachelb.discovery.dns import DnsWorkers
from cachelb.discovery.errors import DiscoveryError
from cachelb.discovery.file import FileWorkers
from cachelb.discovery.kubernetes import KubernetesWorkers
from cachelb.discovery.text import from_text
from cachelb.types import DiscoveryStats

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
