"""A package that is not installed is named together with the extra that brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROMETHEUS = "import cachelb.metrics as m; m.PrometheusCollector(cachelb.Router(['a']))"
OTEL = "import cachelb.metrics as m; m.instrument(cachelb.Router(['a']), None)"
LITELLM = "from cachelb.integrations.litellm import CachelbCallback; CachelbCallback()"
SIGNED = "from cachelb_gateway.ext_proc.certificates import self_signed; self_signed(None)"
EVENTS = "from cachelb.events import ZmqSource, Endpoint; ZmqSource()"
REDIS = "from cachelb.state import RedisState; RedisState('redis://127.0.0.1')"
METRICS = "from cachelb.sources import MetricsSource; MetricsSource()"
DISCOVERY = "from cachelb.events import ZmqSource; ZmqSource(discover=True)"
DNS = "from cachelb_gateway.discovery import from_text; from_text('dns:vllm:8000')"
FILE = "from cachelb_gateway.discovery import from_text; from_text('file:workers.yaml')"


@pytest.mark.parametrize(
    ("package", "code", "message"),
    [
        ("prometheus_client", PROMETHEUS, "install it, or cachelb[prometheus]"),
        ("opentelemetry", OTEL, "install it, or cachelb[otel]"),
        ("litellm", LITELLM, "ModuleNotFoundError: CachelbCallback needs LiteLLM: install it, or cachelb[litellm]"),
        ("cryptography", SIGNED, "--cert-path needs cryptography: install it, or cachelb-gateway[extproc]"),
        ("zmq", EVENTS, "ModuleNotFoundError: ZmqSource needs pyzmq: install it, or cachelb[events]"),
        ("redis", REDIS, "ModuleNotFoundError: RedisState needs redis-py: install it, or cachelb[redis]"),
        ("cryptography", REDIS, "ModuleNotFoundError: RedisState needs cryptography: install it, or cachelb[redis]"),
        ("aiohttp", METRICS, "ModuleNotFoundError: MetricsSource needs aiohttp: install it, or cachelb[http]"),
        ("aiohttp", DISCOVERY, "ModuleNotFoundError: discover=True needs aiohttp: install it, or cachelb[http]"),
        ("dns", DNS, "ModuleNotFoundError: DnsWorkers needs dnspython: install it, or cachelb-gateway[dns]"),
        ("yaml", FILE, "FileWorkers of a YAML file needs PyYAML: install it, or cachelb-gateway[yaml]"),
    ],
)
def test_missing_package_is_named_with_its_extra(package: str, code: str, message: str) -> None:
    program = f"import sys, cachelb; sys.modules[{package!r}] = None\n{code}"
    run = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    assert message in run.stderr


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("litellm", "cachelb.integrations.litellm"),
        ("aiohttp", "cachelb.testing"),
        ("aiohttp", "cachelb.sources"),
        ("aiohttp", "cachelb.events"),
        ("click", "cachelb.cli.main"),
        ("aiohttp", "cachelb_gateway.discovery"),
        ("dns", "cachelb_gateway.discovery"),
    ],
)
def test_importing_a_module_does_not_import_what_its_extra_brings(package: str, module: str) -> None:
    code = f"import sys, {module}; assert {package!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
