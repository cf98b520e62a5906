"""Pods and Jobs as requests, and the places of what is not supported."""

from pathlib import Path
from typing import Any

import pytest
from manifest_texts import JOB, POD, body, codes, gpus, pod, read

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.kubernetes.kinds import DIGEST_LABEL, KIND_LABEL

EXAMPLES = Path(__file__).parents[3] / "examples" / "kubernetes"
CPU = {"count": 0}


@pytest.mark.parametrize("containers", [True, False])
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_own_examples_are_read_in_both_ways(path: Path, containers: bool) -> None:
    found = read(path.read_text(), containers=containers)
    assert len(found.objects) == 1
    assert {str(r.code) for r in found.remarks} <= {"IMAGE_IGNORED"}


def test_pod_with_all_supported_fields_is_converted() -> None:
    text = """\
apiVersion: v1
kind: Pod
metadata:
  name: all
  labels: {app: x, kai.scheduler/queue: vision}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 5
  activeDeadlineSeconds: 60
  priorityClassName: build
  nodeSelector: {disk: ssd, kubernetes.io/hostname: n1, nvidia.com/gpu.product: Tesla-V100-SXM2-16GB}
  tolerations: [{key: nvidia.com/gpu, operator: Exists}]
  volumes:
  - {name: data, hostPath: {path: /data, type: Directory}}
  - {name: tmp, emptyDir: {}}
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: 2Gi}}
  containers:
  - name: main
    image: repo/img:2
    imagePullPolicy: Always
    command: [python]
    args: [train.py, "--lr=$(LR)", "$$(LR)", "$(UNSET)"]
    workingDir: /work
    tty: true
    env:
    - {name: LR, value: 0.10}
    - {name: WHERE, value: "$(LR) of it"}
    - {name: ME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: APP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    securityContext: {runAsUser: 1000, runAsGroup: 100}
    resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1500m, memory: 2G, nvidia.com/gpu: "2"}}
    volumeMounts:
    - {name: data, mountPath: /in, readOnly: true, subPath: set1}
    - {name: tmp, mountPath: /out}
    - {name: shm, mountPath: /dev/shm}
"""
    assert body(text, projects=frozenset({"vision"})) == {
        "name": "all",
        "project": "vision",
        "command": ["train.py", "--lr=0.10", "$(LR)", "$(UNSET)"],
        "env": {"LR": "0.10", "WHERE": "0.10 of it", "APP": "x", "MEM": "1908"},
        "env_from": {"ME": "member"},
        "literal": True,
        "workdir": "/work",
        "gpus": {"count": 2, "models": ["V100-SXM2-16GB"], "labels": {"disk": "ssd", "node": "n1"}},
        "cpus": 1.5,
        "memory": 1908,
        "max_time": 60.0,
        "grace": 5.0,
        "tty": True,
        "restart": "on-failure",
        "backoff_limit": 1000,
        "preemptible": False,
        "labels": {"app": "x", "kai.scheduler/queue": "vision"},
        "image": "repo/img:2",
        "pull": "always",
        "entrypoint": ["python"],
        "container_user": "1000:100",
        "volumes": [
            {"target": "/in", "source": "/data/set1", "read_only": True},
            {"target": "/out", "kind": "empty"},
            {"target": "/dev/shm", "kind": "memory", "size": 2048},
        ],
    }


def test_kind_and_digest_are_marked_and_digest_depends_on_request() -> None:
    first, again, other = (read(text).objects[0] for text in (POD, "# a\n" + POD, POD.replace("[run]", "[walk]")))
    assert first.request.labels == {KIND_LABEL: "Pod", DIGEST_LABEL: first.digest}
    assert (first.digest == again.digest, first.digest == other.digest) == (True, False)


@pytest.mark.parametrize(
    ("limits", "notes", "expected"),
    [
        ("{}", "", CPU),
        ("{nvidia.com/gpu: 2}", "", {"count": 2}),
        ('{nvidia.com/gpu: "0.5"}', "", {"fraction": 0.5}),
        ("{nvidia.com/mig-3g.20gb: 1}", "", {"models": ["3g.20gb"]}),
        ("{}", 'gpu-fraction: "0.5"', {"fraction": 0.5}),
        ("{}", 'gpu-fraction: "0.25", gpu-fraction-num-devices: "2"', {"count": 2, "fraction": 0.25}),
        ("{}", 'gpu-memory: "2000"', {"memory_mib": 2000}),
        ("{nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}", "", {"memory_mib": 3000}),
        ("{nvidia.com/gpumem: 3000}", "", {"memory_mib": 3000}),
        ("{nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 50}", "", {"count": 2, "fraction": 0.5}),
        (
            "{nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 30, nvidia.com/gpucores: 30}",
            "",
            {"fraction": 0.3, "compute": "cap"},
        ),
        ("{nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 100, nvidia.com/gpucores: 100}", "", {}),
        ("{nvidia.com/gpu: 1}", 'nvidia.com/use-gputype: "A100, V100"', {"models": ["A100", "V100"]}),
        ("{nvidia.com/gpu: 1}", "hami.io/node-scheduler-policy: spread", {"placement": "spread"}),
        ("{nvidia.com/gpumem: 100}", "nvidia.com/vgpu-mode: mps", {"memory_mib": 100, "sharing": "mps"}),
    ],
)
def test_gpus_in_the_words_of_kai_runai_and_hami(limits: str, notes: str, expected: dict[str, Any]) -> None:
    assert gpus(limits, notes) == expected


def test_cores_with_different_memory_part_cause_warning() -> None:
    text = pod(container="resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 9, nvidia.com/gpucores: 30}}")
    assert codes(text) == [("COMPUTE_FOLLOWS_MEMORY", 11, 67)]


@pytest.mark.parametrize(
    ("values", "models", "labels"),
    [
        (
            "{key: nvidia.com/gpu.product, operator: In, values: [Tesla-T4, Tesla-V100-SXM2-16GB]}",
            ["T4", "V100-SXM2-16GB"],
            {},
        ),
        ("{key: cloud.google.com/gke-accelerator, operator: In, values: [nvidia-tesla-t4]}", ["t4"], {}),
        ("{key: disk, operator: In, values: [ssd]}", None, {"disk": "ssd"}),
        ("{key: kubernetes.io/os, operator: In, values: [linux]}", None, {}),
    ],
)
def test_required_affinity_chooses_models_and_labels(values: str, models: Any, labels: dict[str, str]) -> None:
    required = (
        f"requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{matchExpressions: [{values}]}}]}}"
    )
    found = gpus("{nvidia.com/gpu: 1}", "", f"affinity: {{nodeAffinity: {{{required}}}}}")
    assert (found.get("models"), found.get("labels", {})) == (models, labels)


def test_config_map_in_same_file_gives_values() -> None:
    maps = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {A: one, B: '2'}\n"
    whole, key = "envFrom: [{prefix: P_, configMapRef: {name: c}}]", "{configMapKeyRef: {name: c, key: A}}"
    text = pod(container=f"{whole}\nenv: [{{name: X, valueFrom: {key}}}]")
    assert body(text + maps)["env"] == {"P_A": "one", "P_B": "2", "X": "one"}
    with pytest.raises(GpupoolError, match=r"a\.yaml:11:28: .* needs the ConfigMap 'c', which is not in this file"):
        read(text)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("", {"restart": "on-failure", "backoff_limit": 6}),
        ("backoffLimit: 0", {"restart": "never"}),
        ("completions: 5", {"completions": 5, "parallelism": 1}),
        ("completions: 5\nparallelism: 9", {"completions": 5, "parallelism": 5}),
        (
            "completions: 4\nparallelism: 2\nbackoffLimitPerIndex: 3",
            {"completions": 4, "parallelism": 2, "backoff_limit": 3},
        ),
        ("parallelism: 3", {"completions": 3, "parallelism": 3}),
        ("activeDeadlineSeconds: 10\nttlSecondsAfterFinished: 7", {"max_time": 10.0, "ttl": 7.0}),
        ("ttlSecondsAfterFinished: 0", {"ttl": 1.0}),
        ("completions: 2\ncompletionMode: Indexed", {"env_from": {"JOB_COMPLETION_INDEX": "index"}}),
    ],
)
def test_jobs(spec: str, expected: dict[str, Any]) -> None:
    found = read(JOB + "".join(f"  {line}\n" for line in spec.splitlines())).objects[0].request.model_dump(mode="json")
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("line", "waits"), [("suspend: true", True), ("parallelism: 0", True), ("suspend: false", False)]
)
def test_suspended_jobs(line: str, waits: bool) -> None:
    assert read(f"{JOB}  {line}\n").objects[0].suspended is waits


def test_index_in_arguments_is_filled_in_and_other_braces_are_literal() -> None:
    indexed = JOB + "  completions: 2\n  completionMode: Indexed\n"
    with_index = body(indexed.replace("[run]", '[run, "$(JOB_COMPLETION_INDEX)"]'))
    assert (with_index["entrypoint"], "literal" in with_index) == (["run", "{index}"], False)
    assert body(indexed.replace("[run]", '[run, "{index}"]'))["literal"] is True
    with pytest.raises(GpupoolError, match="cannot be combined with a variable for the index"):
        read(indexed.replace("[run]", '[run, "{index} $(JOB_COMPLETION_INDEX)"]'))


def test_without_containers_the_command_is_a_process_and_the_image_is_named() -> None:
    found = body(pod(container="args: [fast]"), containers=False)
    assert (found["command"], "image" in found) == (["run", "fast"], False)
    assert codes(POD, containers=False) == [("IMAGE_IGNORED", 9, 5)]
    alone = POD.replace("command: [run]", "args: [sleep, infinity]")
    assert codes(alone, containers=False) == [("IMAGE_IGNORED", 9, 5), ("ENTRYPOINT_UNKNOWN", 10, 5)]
    with pytest.raises(GpupoolError, match=r"a\.yaml:10:5: .* start with an option of the image's program"):
        read(POD.replace("command: [run]", "args: [--fast]"), containers=False)
    assert "image" not in body(pod(notes="gpupool/run-as: process"))


def test_projects_come_from_the_option_a_queue_or_the_namespace_where_the_pool_has_them() -> None:
    text = POD.replace("  name: a\n", "  name: a\n  namespace: runai-team-a\n")
    assert read(text, projects=frozenset({"team-a"})).objects[0].request.project == "team-a"
    assert read(text, project="other").objects[0].request.project == "other"
    assert codes(text) == [("PROJECT_UNKNOWN", 5, 3)]
    assert codes(text.replace("runai-team-a", "default")) == []
    queued = text.replace("runai-team-a", "default\n  labels: {kueue.x-k8s.io/queue-name: gone}")
    found = read(queued, projects=frozenset({"default"}))
    assert found.objects[0].request.project == "default"
    assert [(str(r.code), r.line) for r in found.remarks] == [("PROJECT_UNKNOWN", 6)]
    assert "uses project 'default'" in found.remarks[0].message


def test_named_container_of_several_runs() -> None:
    text = POD + "  - {name: side, image: s, command: [watch]}\n"
    with pytest.raises(GpupoolError, match=r"a\.yaml:11:5: A pod can run only one program; the container 'side'"):
        read(text)
    found = read(text, container="side")
    assert found.objects[0].request.entrypoint == ["watch"]
    assert [(str(r.code), r.line) for r in found.remarks] == [("CONTAINER_LEFT_OUT", 8)]


def test_claims_may_be_folders() -> None:
    mount = pod(
        "volumes: [{name: d, persistentVolumeClaim: {claimName: big}}]",
        container="volumeMounts: [{name: d, mountPath: /d}]",
    )
    assert read(mount, claims={"big": "/srv/big"}).objects[0].request.volumes[0].source == "/srv/big"
    with pytest.raises(GpupoolError, match="is not a supported volume"):
        read(mount)


def test_cluster_setup_objects_are_skipped_with_remark() -> None:
    found = read("apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n---\n" + POD)
    assert [(one.kind, one.name) for one in found.skipped] == [("Namespace", "n")]
    assert [(str(r.code), r.line, r.column) for r in found.remarks] == [("KIND_SKIPPED", 2, 1)]


@pytest.mark.parametrize("kind", ["ConfigMap", "TrainingRuntime", "ClusterTrainingRuntime"])
def test_helper_object_alone_is_skipped_with_remark(kind: str) -> None:
    version = "v1" if kind == "ConfigMap" else "trainer.kubeflow.org/v1alpha1"
    text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: n}}\n"
    found = read(text)
    assert [(one.kind, one.name) for one in found.skipped] == [(kind, "n")]
    assert [(str(r.code), r.line, r.column) for r in found.remarks] == [("KIND_SKIPPED", 2, 1)]
    assert read(f"{text}---\n{POD}").skipped == ()


@pytest.mark.parametrize(
    ("note", "warned"),
    [
        ("kueue.x-k8s.io/job-min-parallelism: '2'", True),
        ("kueue.x-k8s.io/podset-preferred-topology: rack", True),
        ("scheduler.example.com/spread: 'yes'", True),
        ("gpu-fractoin: '0.5'", True),
        ("kubectl.kubernetes.io/last-applied-configuration: '{}'", False),
        ("prometheus.io/scrape: 'true'", False),
        ("description: mine", False),
    ],
)
def test_annotations_that_ask_for_something_unknown_are_reported(note: str, warned: bool) -> None:
    assert [code for code, *_ in codes(pod(notes=note))] == (["ANNOTATION_IGNORED"] if warned else [])


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        ("podset-required-topology", "is for jobs whose pods start together"),
        ("podset-slice-required-topology", "a gang cannot be split into slices"),
    ],
)
def test_required_topology_of_a_single_pod_is_refused(note: str, sentence: str) -> None:
    with pytest.raises(GpupoolError, match=rf"a\.yaml:.*{sentence}"):
        read(pod(notes=f"kueue.x-k8s.io/{note}: rack"))


def test_lists_json_and_anchors_are_read() -> None:
    inner = "".join(f"  {line}\n" for line in POD.splitlines())
    assert len(read(f"apiVersion: v1\nkind: List\nitems:\n- {inner[2:]}").objects) == 1
    assert read(
        '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
    ).objects


D = "volumes: [{name: d, hostPath: {path: /d}}]"
BAD = [
    (POD.replace("command", "comand"), "10:5", "There is no field 'spec.containers[0].comand'", "'command'?"),
    (POD.replace("restartPolicy", "restartpolicy"), "6:3", "There is no field 'spec.restartpolicy'", "restartPolicy"),
    (POD.replace("Never", "Sometimes"), "6:3", "must be one of Always, OnFailure, Never", ""),
    (POD.replace("kind: Pod", "kind: StatefulSet"), "2:1", "'StatefulSet' is not a supported kind", "Supported: Pod"),
    (POD.replace("apiVersion: v1", "apiVersion: v2"), "1:1", "Pod of 'v2' is not supported", "Known: v1"),
    (POD.replace("apiVersion: v1\n", ""), "1:1", "mapping with 'apiVersion' and 'kind'", ""),
    (POD.replace("kind: Pod\n", ""), "1:1", "mapping with 'apiVersion' and 'kind'", ""),
    ("[1, 2]", "1:1", "mapping with 'apiVersion' and 'kind'", ""),
    (POD.replace("name: a", "name: a/b"), "4:3", "name", ""),
    (pod("initContainers: [{name: i, image: x}]"), "11:3", "a pod runs one program", "start of the command"),
    (pod("volumes: []", container="volumeMounts: [{name: d, mountPath: /d}]"), "11:20", "names the volume 'd'", ""),
    (pod(container="resources: {limits: {nvidia.com/gpu: 1.5}}"), "11:26", "must be a whole number", ""),
    (pod(container="resources: {limits: {cpu: -1}}"), "11:26", "is '-1', which is not a quantity", "500m"),
    (pod(container="resources: {limits: {amd.com/gpu: 1}}"), "11:26", "is not a resource of the nodes", ""),
    (pod(container="securityContext: {privileged: true}"), "11:23", "is not supported", ""),
    (pod(container="env: [{name: K, valueFrom: {secretKeyRef: {name: s, key: k}}}]"), "11:33", "stores no secrets", ""),
    (pod(notes='gpu-fraction: "1.5"'), "5:17", "must be a part of a GPU", ""),
    (pod(notes="nvidia.com/vgpu-mode: mig"), "5:17", "does not name the profile", "nvidia.com/mig-2g.10gb"),
    (pod(notes="nvidia.com/nouse-gputype: T4"), "5:17", "GPUs are selected by model", "use-gputype"),
    (JOB.replace("Never", "Always"), "8:7", "must be OnFailure or Never", ""),
    (JOB + "  completionMode: Indexed\n", "5:1", "needs 'completions'", ""),
    (pod(D, container="volumeMounts: [{name: d, mountPath: /d, subPath: ../e}]"), "11:20", "without '..'", ""),
    (POD + "---\n" + POD, "15:3", "'a' is used twice: also in line 4", ""),
    (POD.replace("  name: a\n", "  name: a\n  labels: {gpupool/kind: Job}\n"), "5:12", "a reserved label", ""),
    ("just text\n", "1:1", "A manifest must be a mapping", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "words", "hint"), BAD, ids=[case[2][:30] for case in BAD])
def test_unsupported_field_is_refused_with_its_position(text: str, place: str, words: str, hint: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        read(text)
    assert f"a.yaml:{place}: " in caught.value.message
    assert words in caught.value.message
    assert hint in caught.value.hint


def test_all_faults_of_a_file_are_reported_at_once() -> None:
    text = POD.replace("command", "comand") + "---\n" + JOB.replace("Never", "Always")
    with pytest.raises(GpupoolError) as caught:
        read(text)
    assert [line.split(": ")[0] for line in caught.value.message.splitlines()] == ["a.yaml:10:5", "a.yaml:19:7"]
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_empty_file_is_not_a_manifest() -> None:
    with pytest.raises(GpupoolError, match="contains no manifest"):
        read("# nothing\n")
