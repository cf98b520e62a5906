"""Properties of every manifest: only errors with places, and answers in Kubernetes' format."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from manifest_texts import JOB, POD, read

from gpupool.domain.errors import GpupoolError
from gpupool.specs.kubernetes.jsonpath import evaluate
from gpupool.specs.kubernetes.manifests import named_objects
from gpupool.specs.kubernetes.objects import allocatable, capacity, gpu_limits, node_object, pod_status, requested_gpus
from gpupool.specs.kubernetes.report import ManifestNotice

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["", "x", "1.5", "{index}", "../..", "$(A)", "nan"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "kind", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
PATHS = [
    ("metadata",), ("metadata", "name"), ("metadata", "labels"), ("metadata", "annotations"), ("spec",),
    ("spec", "template"), ("spec", "template", "spec"), ("spec", "containers"), ("spec", "restartPolicy"),
    ("spec", "nodeSelector"), ("spec", "affinity"), ("spec", "volumes"), ("spec", "securityContext"),
    ("spec", "completions"), ("spec", "parallelism"), ("spec", "template", "spec", "containers"), ("kind",),
    ("spec", "template", "spec", "containers", 0, "env"), ("spec", "containers", 0, "env"),
    ("spec", "containers", 0, "resources"), ("spec", "containers", 0, "volumeMounts"),
    ("spec", "containers", 0, "command"), ("spec", "containers", 0, "args"), ("spec", "containers", 0, "envFrom"),
]  # fmt: skip


@given(text=st.sampled_from([POD, JOB]), path=st.sampled_from(PATHS), junk=JUNK, containers=st.booleans())
@settings(max_examples=120, deadline=None)
def test_junk_anywhere_is_read_or_refused_with_a_place(
    text: str, path: tuple[Any, ...], junk: Any, containers: bool
) -> None:
    document = yaml.safe_load(text)
    holder = document
    for step in path[:-1]:
        holder = holder[step] if (isinstance(holder, list) or (isinstance(holder, dict) and step in holder)) else {}
    if isinstance(holder, dict):
        holder[path[-1]] = junk
    said = "a.yaml: read"
    try:
        read(yaml.safe_dump(document), containers=containers)
    except GpupoolError as error:
        said = error.message
    assert said.startswith("a.yaml:")


def test_names_are_read_of_manifests_that_could_not_be_applied() -> None:
    text = POD.replace("command", "comand") + "---\nkind: Namespace\nmetadata: {name: n}\n---\n" + JOB
    assert named_objects(text, "a.yaml") == [("Pod", "a"), ("Job", "a")]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{.status.succeeded}", "3"),
        ("{.items[*].metadata.name}", "a b"),
        ("{.items[1].metadata.name}", "b"),
        ("{.metadata.labels.app\\.io/x}", "1"),
        ("{.metadata.labels['app.io/x']}", "1"),
        ("{.nothing.here}", ""),
        ('{.status.succeeded}{"\\n"}', "3\n"),
        ("plain", "plain"),
    ],
)
def test_jsonpath(template: str, expected: str) -> None:
    names = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]
    value = {"status": {"succeeded": 3}, "items": names, "metadata": {"labels": {"app.io/x": "1"}}}
    assert evaluate(template, value) == expected


def test_jsonpath_beyond_paths_is_refused() -> None:
    with pytest.raises(GpupoolError, match="is not a supported path"):
        evaluate("{range .items[*]}", {})


def test_node_shows_capacity_and_allocatable() -> None:
    gpus = [{"available": True, "allocated_permille": 500}, {"available": False, "allocated_permille": 0}]
    node = {
        "name": "n",
        "state": "up",
        "cpus": 4.0,
        "memory_mib": 512,
        "gpus": gpus,
        "labels": {},
        "agent_version": "1",
    }
    assert capacity(node) == {"cpu": "4", "memory": "512Mi", "nvidia.com/gpu": "2"}
    assert allocatable(node)["nvidia.com/gpu"] == "1"
    assert node_object(node)["status"]["conditions"] == [{"type": "Ready", "status": "True"}]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (None, {}),
        ({"count": 0}, {}),
        ({"count": 2}, {"nvidia.com/gpu": "2"}),
        ({"fraction": 0.25}, {"nvidia.com/gpu": "0.25"}),
        ({"count": 2, "fraction": 0.5}, {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50"}),
        ({"memory_mib": 2048}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048"}),
    ],
)
def test_objects_show_parts_of_gpus(request_: dict[str, Any] | None, expected: dict[str, str]) -> None:
    assert gpu_limits(requested_gpus(request_)) == expected


@pytest.mark.parametrize(
    ("replica", "suspended", "expected"),
    [
        ({"state": "pending", "failures": 0, "not_before": 0}, False, "Pending"),
        ({"state": "pending", "failures": 0, "not_before": 0}, True, "Suspended"),
        ({"state": "pending", "failures": 1, "not_before": 20}, False, "CrashLoopBackOff"),
        ({"state": "starting"}, False, "ContainerCreating"),
        ({"state": "failed"}, False, "Error"),
    ],
)
def test_pod_status_follows_replica_state(replica: dict[str, Any], suspended: bool, expected: str) -> None:
    assert pod_status(replica, 10.0, suspended=suspended) == expected


def test_documentation_tables_are_current() -> None:
    script = Path(__file__).parents[3] / "scripts" / "kubernetes-docs"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_warning_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text()
    assert [code for code in ManifestNotice if f"`{code}`" not in page] == []
