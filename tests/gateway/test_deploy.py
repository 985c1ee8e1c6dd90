"""Contents of deploy/: manifests that the published schemas accept and that agree with each other, and an image."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cachelb_gateway import config
from cachelb_gateway.ext_proc.__main__ import parse

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
APPLICATIONS = ("gateway", "picker")
SCHEMAS = ("1.30", "1.37")
"""The first Kubernetes with `preStop.sleep` on by default, and the latest of the package."""


def read(name: str) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text("utf-8"))]


def kinds(name: str) -> dict[str, dict[str, Any]]:
    objects = read(name)
    found = {each["kind"]: each for each in objects}
    assert len(found) == len(objects)
    return found


def container(name: str) -> dict[str, Any]:
    (only,) = kinds(name)["Deployment"]["spec"]["template"]["spec"]["containers"]
    made: dict[str, Any] = only
    return made


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize("name", APPLICATIONS)
def test_schemas_accept_every_object(name: str, version: str) -> None:
    for each in read(name):
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_objects_of_an_application_name_each_other(name: str) -> None:
    objects = kinds(name)
    assert {each["metadata"]["name"] for each in objects.values()} == {f"cachelb-{name}"}
    labels = {"app.kubernetes.io/name": f"cachelb-{name}"}
    deployment = objects["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    assert deployment["template"]["metadata"]["labels"] == deployment["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert 0 < objects["PodDisruptionBudget"]["spec"]["minAvailable"] < deployment["replicas"]
    names = [port["name"] for port in container(name)["ports"]]
    assert [port["targetPort"] for port in objects["Service"]["spec"]["ports"]] == names[:1]
    account = objects["ServiceAccount"]["metadata"]["name"]
    assert (pod["serviceAccountName"], objects["RoleBinding"]["subjects"][0]["name"]) == (account, account)
    assert objects["RoleBinding"]["roleRef"]["name"] == objects["Role"]["metadata"]["name"]
    assert {volume["configMap"]["name"] for volume in pod["volumes"]} == {objects["ConfigMap"]["metadata"]["name"]}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_pods_may_read_endpoints_and_nothing_else(name: str) -> None:
    (rule,) = kinds(name)["Role"]["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }


@pytest.mark.parametrize("name", APPLICATIONS)
def test_containers_are_unprivileged_and_end_in_time(name: str) -> None:
    pod = kinds(name)["Deployment"]["spec"]["template"]["spec"]
    own = container(name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(mount["readOnly"] for mount in own["volumeMounts"])
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= own.keys()
    assert pod["terminationGracePeriodSeconds"] > own["lifecycle"]["preStop"]["sleep"]["seconds"] + 30
    assert own["resources"]["requests"].keys() >= {"cpu", "memory"}
    assert "memory" in own["resources"]["limits"]


@pytest.mark.parametrize("name", APPLICATIONS)
def test_configuration_is_one_and_fits_the_deployment(name: str) -> None:
    objects = kinds(name)
    ((file, text),) = objects["ConfigMap"]["data"].items()
    (mount,) = container(name)["volumeMounts"]
    words = " ".join([*container(name)["command"], *container(name).get("args", [])]).replace("=", " ").split()
    assert words[words.index("--config") + 1] == f"{mount['mountPath']}/{file}"
    document = tomllib.loads(text)
    assert document["discovery"] == [{"kind": "kubernetes", "service": "vllm", "port": 8000}]
    # Outside of a cluster there is no API to watch.
    del document["discovery"]
    router = config.load(document).build()
    router.close()
    assert document["router"]["replicas"] == objects["Deployment"]["spec"]["replicas"]


def test_gateway_serves_clients_alone_on_its_port() -> None:
    own = container("gateway")
    assert own["command"] == [
        *("cachelb", "serve", "--config", "/etc/cachelb/gateway.toml", "--listen", "0.0.0.0:8080"),
    ]
    assert [port["containerPort"] for port in own["ports"]] == [8080]
    probes = {kind: own[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startupProbe": "/health",
        "livenessProbe": "/health",
        "readinessProbe": "/ready",
    }


def test_picker_listens_where_its_probes_and_the_pool_look() -> None:
    own = container("picker")
    assert own["command"] == ["python", "-m", "cachelb_gateway.ext_proc"]
    options = parse(own["args"])
    listen = [options.listen, options.grpc_health_port, options.metrics_port]
    port, health, _ = ports = [int(address.rpartition(":")[2]) for address in listen]
    assert ports == [each["containerPort"] for each in own["ports"]]
    assert {own[kind]["grpc"]["port"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")} == {health}
    assert own["readinessProbe"]["grpc"]["service"] == "readiness"
    (pool,) = read("inference-pool")
    assert (pool["apiVersion"], pool["kind"]) == ("inference.networking.k8s.io/v1", "InferencePool")
    assert pool["spec"].keys() == {"selector", "targetPorts", "endpointPickerRef"}
    picker = pool["spec"]["endpointPickerRef"]
    service = kinds("picker")["Service"]
    assert picker == {"name": service["metadata"]["name"], "port": {"number": port}, "failureMode": "FailOpen"}
    assert [each["port"] for each in service["spec"]["ports"]] == [port]
    ((discovery,),) = [tomllib.loads(text)["discovery"] for text in kinds("picker")["ConfigMap"]["data"].values()]
    assert pool["spec"]["targetPorts"] == [{"number": discovery["port"]}]


# --- the image ---

INSTRUCTIONS = re.sub(r"\\\n", " ", (ROOT / "deploy" / "Dockerfile").read_text("utf-8"))
LINES = [line.split(maxsplit=1) for line in INSTRUCTIONS.splitlines() if line and not line.startswith("#")]


def test_image_runs_the_wheel_of_another_stage_as_an_unprivileged_user() -> None:
    stages = [at for at, (word, _) in enumerate(LINES) if word == "FROM"]
    assert len(stages) == 3
    assert all(re.fullmatch(r"\w+:\d+\.\d+-slim-\w+( AS \w+)?", LINES[at][1]) for at in stages)
    last = LINES[stages[-1] :]
    assert [text for word, text in last if word == "COPY"] == ["--from=install /opt/cachelb /opt/cachelb"]
    users = {
        kinds(name)["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for name in APPLICATIONS
    }
    assert [text for word, text in last if word == "USER"] == [f"{user}:{user}" for user in users]
    assert not {"ADD", "ARG"} & {word for word, _ in LINES}
    assert not re.search(r"token|password|index-url|netrc|https?://", INSTRUCTIONS)


def test_image_has_the_rust_that_is_needed_and_its_tag_in_the_manifests_is_this_version() -> None:
    package = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]
    rust = re.search(r"rust:(\d+)\.(\d+)", INSTRUCTIONS)
    assert rust is not None
    assert (int(rust[1]), int(rust[2])) >= tuple(map(int, package["rust-version"].split(".")))
    assert {container(name)["image"] for name in APPLICATIONS} == {f"cachelb:{package['version']}"}


def test_context_of_the_image_has_what_the_wheel_is_built_from() -> None:
    """BuildKit reads this file; the last pattern that matches a path decides."""
    patterns = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = [
        project["project"]["readme"],
        *project["project"]["license-files"],
        *project["build-system"]["backend-path"],
    ]
    needed += [project["tool"]["maturin"]["manifest-path"], project["tool"]["maturin"]["python-source"]]
    needed += tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["members"]
    assert {path.partition("/")[0] for path in needed} | {
        "Cargo.toml",
        "Cargo.lock",
        "gateway",
        "pyproject.toml",
    } == kept
    assert all((ROOT / path).exists() for path in kept)


def test_image_has_the_extras_that_the_applications_need() -> None:
    found = dict(re.findall(r"(cachelb\w*)-\*\.whl\)\[([a-z,]+)\]", INSTRUCTIONS))
    extras = {package: set(named.split(",")) for package, named in found.items()}
    assert {"events", "redis"} <= extras["cachelb"]
    assert {"dns", "extproc", "kubernetes", "yaml"} <= extras["cachelb_gateway"]
