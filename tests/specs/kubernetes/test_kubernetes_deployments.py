"""Deployments and Services as services: ports, probes, strategies, and what is ignored or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from manifest_texts import body, read

from gpupool.domain.errors import GpupoolError
from gpupool.specs.kubernetes.report import ManifestNotice

EXAMPLE = (Path(__file__).parents[3] / "examples" / "services" / "deployment.yaml").read_text()
SERVER = {"name": "s", "image": "img:1", "command": ["serve", "--port", "8000"], "ports": [{"containerPort": 8000}]}


def deployment(container: dict[str, Any] | None = None, service: dict[str, Any] | None = None, **spec: Any) -> str:
    """Return a Deployment with changed fields of its container and its spec, and a Service."""
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{**SERVER, **(container or {})}]}}
    notes = spec.pop("notes", {})
    first = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a", "annotations": notes},
        "spec": {"template": template, **spec},
    }
    if service is None:
        return yaml.safe_dump(first)
    second = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a-svc"}}
    return yaml.safe_dump_all([first, {**second, "spec": {"selector": {"app": "a"}, **service}}])


def section(text: str) -> dict[str, Any]:
    found: dict[str, Any] = body(text).get("service", {})
    return found


def notices(text: str) -> list[ManifestNotice]:
    return [remark.code for remark in read(text).remarks]


def refusal(text: str) -> str:
    with pytest.raises(GpupoolError) as refused:
        read(text)
    return refused.value.message


def test_example_is_a_service_with_its_port_probe_and_model() -> None:
    found = body(EXAMPLE)
    assert (found["kind"], found["name"], found["gpus"]["fraction"]) == ("service", "chat", 0.5)
    assert found["command"] == ["--model", "Qwen/Qwen3-8B", "--port", "{port}"]
    service = found["service"]
    assert (service["replicas"], service["model"]) == ("2", ["qwen"])
    ready = service["ready"]
    assert (ready["http"], ready["every"], ready["timeout"]) == ("/health", 5, 1)
    assert notices(EXAMPLE) == [ManifestNotice.PORT_REPLACED, ManifestNotice.SERVICE_ADDRESS]


@pytest.mark.parametrize(
    ("container", "program", "port"),
    [
        ({"command": ["serve", "--port=8000"]}, {"entrypoint": ["serve", "--port={port}"]}, None),
        ({"command": ["serve", "--bind", "0.0.0.0:8000"]}, {"entrypoint": ["serve", "--bind", "0.0.0.0:{port}"]}, None),
        ({"command": ["serve"], "env": [{"name": "PORT", "value": "8000"}]}, {"env": {"PORT": "{port}"}}, None),
        ({"command": ["serve", "{port}"]}, {"entrypoint": ["serve", "{port}"]}, None),
        ({"command": ["serve", "18000"]}, {"entrypoint": ["serve", "18000"]}, 8000),
    ],
)  # fmt: skip
def test_port_of_the_container_becomes_that_of_each_replica(
    container: dict[str, Any], program: dict[str, Any], port: int | None
) -> None:
    found = body(deployment(container))
    assert {key: found[key] for key in program} == program
    assert found.get("service", {}).get("port") == port
    assert (ManifestNotice.PORT_FIXED in notices(deployment(container))) == (port is not None)


def test_service_chooses_the_port_by_name_or_number() -> None:
    ports = {
        "command": ["serve", "9000", "8000"],
        "ports": [{"containerPort": 8000}, {"containerPort": 9000, "name": "http"}],
    }
    for target in ("http", 9000):
        text = deployment(ports, {"ports": [{"port": 80, "targetPort": target}]})
        assert body(text)["entrypoint"] == ["serve", "{port}", "8000"]
    assert body(deployment(ports))["entrypoint"] == ["serve", "9000", "{port}"]
    assert "no port with the name 'web'" in refusal(deployment(ports, {"ports": [{"port": 80, "targetPort": "web"}]}))


def test_service_without_a_deployment_is_skipped_as_before() -> None:
    text = deployment(service={"selector": {"app": "other"}, "ports": [{"port": 80}]})
    found = read(text)
    assert [(one.kind, one.name) for one in found.skipped] == [("Service", "a-svc")]
    assert ManifestNotice.KIND_SKIPPED in [remark.code for remark in found.remarks]


@pytest.mark.parametrize(
    ("probe", "ready"),
    [
        ({"httpGet": {"port": 8000}}, {"http": "/"}),
        ({"tcpSocket": {"port": 8000}, "failureThreshold": 5}, {"failures": 5}),
        ({"exec": {"command": ["check", "8000"]}, "timeoutSeconds": 9}, {"command": ["check", "{port}"], "timeout": 9}),
    ],
)
def test_readiness_probe_is_the_check_of_replicas(probe: dict[str, Any], ready: dict[str, Any]) -> None:
    found = section(deployment({"readinessProbe": probe}, progressDeadlineSeconds=90))["ready"]
    assert {key: found[key] for key in ready} == ready
    assert (found["within"], found["every"]) == (90, 10)


@pytest.mark.parametrize(
    ("strategy", "replicas", "surge"),
    [
        (None, 1, 1),
        (None, 5, 2),
        ({"type": "Recreate"}, 1, 0),
        ({"rollingUpdate": {"maxSurge": 3}}, 4, 3),
        ({"rollingUpdate": {"maxSurge": "50%"}}, 3, 2),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, 2, 0),
    ],
)
def test_strategy_decides_the_surge(strategy: dict[str, Any] | None, replicas: int, surge: int) -> None:
    more = {} if strategy is None else {"strategy": strategy}
    assert section(deployment(replicas=replicas, **more)).get("update", {}).get("surge", 1) == surge


def test_annotations_have_the_fields_that_deployments_lack() -> None:
    notes = {
        "gpupool/access": "public",
        "gpupool/model": "a, b",
        "gpupool/replicas": "0..4",
        "gpupool/hosts": "a.example.org",
    }
    found = section(deployment(notes=notes))
    assert (found["access"], found["model"], found["replicas"]) == ("public", ["a", "b"], "0..4")
    assert found["hosts"] == ["a.example.org"]
    assert ManifestNotice.ANNOTATION_IGNORED not in notices(deployment(notes=notes))


def test_no_replicas_means_stopped() -> None:
    [stopped] = read(deployment(replicas=0)).objects
    [running] = read(deployment(replicas=3)).objects
    assert (stopped.suspended, running.suspended) == (True, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (deployment(paused=True), "'spec.paused' is not supported"),
        (deployment({"readinessProbe": {"grpc": {"port": 8000}}}), "grpc' is not supported"),
        (deployment({"readinessProbe": {"httpGet": {"port": 9}}}), "checks the port 9; requests go to the port 8000"),
        (deployment({"readinessProbe": {"httpGet": {"port": 8000, "scheme": "HTTPS"}}}), "must be one of HTTP"),
        (deployment({"readinessProbe": {"exec": {"command": ["x"]}, "timeoutSeconds": 60}}), "timeout above 30"),
        (deployment({"readinessProbe": {"exec": {}}}), "needs a 'command'"),
        (deployment(strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}), "cannot be 0 for both"),
        (deployment(strategy={"rollingUpdate": {"maxSurge": "many"}}), "number of replicas or a percentage"),
        (deployment(service={"type": "ExternalName", "externalName": "x"}), "cannot be ExternalName"),
        (deployment(service={"ports": [{"port": 53, "protocol": "UDP"}]}), "protocol TCP"),
        (deployment(notes={"gpupool/access": "everyone"}), "access"),
        (deployment(strategy={"typ": "x"}), "There is no field 'spec.strategy.typ'"),
        (deployment(replicas=5000), "must be a whole number"),
    ],
)  # fmt: skip
def test_what_a_service_cannot_do_is_refused_with_a_place(text: str, said: str) -> None:
    message = refusal(text)
    assert said in message
    assert message.startswith("a.yaml:")


def test_what_has_no_effect_is_said() -> None:
    text = deployment(
        {
            "livenessProbe": {"httpGet": {"port": 8000}},
            "readinessProbe": {"tcpSocket": {"port": 8000}, "successThreshold": 2},
        },
        {"ports": [{"port": 8000}, {"port": 81}], "sessionAffinity": "ClientIP"},
        minReadySeconds=5,
        replicas=2,
        strategy={"type": "Recreate"},
    )  # fmt: skip
    said = [remark.message for remark in read(text).remarks]
    for part in (
        "livenessProbe",
        "successThreshold",
        "sessionAffinity",
        "minReadySeconds",
        "'spec.strategy'",
        "ports[1]",
    ):
        assert any(part in message for message in said), (part, said)
