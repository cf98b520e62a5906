"""Kubeflow's training jobs as requests for gangs."""

from typing import Any

import pytest
from manifest_texts import body, codes, read

from gpupool.domain.errors import GpupoolError

TEMPLATE = "template: {spec: {containers: [{name: c, image: i:1, command: [run], args: [x], %s}]}}"


def role(more: str = "") -> str:
    return TEMPLATE % more


def kubeflow(kind: str, key: str, specs: str, spec: str = "", version: str = "kubeflow.org/v1") -> str:
    lines = "".join(f"  {line}\n" for line in spec.splitlines())
    roles = "".join(f"    {line}\n" for line in specs.splitlines())
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: j}}\nspec:\n{lines}  {key}:\n{roles}"


def train(spec: str, trainer: str = "numNodes: 2", *documents: str) -> str:
    lines = "".join(f"  {line}\n" for line in spec.splitlines())
    own = "".join(f"    {line}\n" for line in trainer.splitlines())
    head = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec:\n"
    return "---\n".join([*documents, f"{head}{lines}  trainer:\n{own}"])


def roles_of(text: str, **settings: Any) -> list[dict[str, Any]]:
    return body(text, **settings)["roles"]


def test_tfjob_roles_have_their_own_program_gpus_and_policy() -> None:
    specs = (
        f"Chief: {{{role()}, restartPolicy: Never}}\n"
        f"PS: {{replicas: 2, {role('env: [{name: A, value: b}]')}, restartPolicy: ExitCode}}\n"
        f"worker: {{replicas: 3, {role('resources: {limits: {nvidia.com/gpu: 1, cpu: 2}}')}}}\n"
        f"Evaluator: {{replicas: 0, {role()}}}"
    )
    text = kubeflow("TFJob", "tfReplicaSpecs", specs, "runPolicy: {backoffLimit: 2, cleanPodPolicy: All}")
    found = body(text, containers=False)
    assert (found["framework"], found["backoff_limit"], found.get("gpus", "one")) == ("tf", 2, "one")
    assert found["roles"] == [
        {"name": "chief", "command": ["run", "x"], "gpus": {"count": 0}, "restart": "never"},
        {"name": "worker", "replicas": 3, "command": ["run", "x"], "gpus": {}, "cpus": 2.0, "restart": "on-failure"},
        {
            "name": "ps",
            "replicas": 2,
            "command": ["run", "x"],
            "env": {"A": "b"},
            "gpus": {"count": 0},
            "restart": "on-failure",
        },
    ]
    assert ("EXIT_CODES_ALIKE", 8, 135) in codes(text)


@pytest.mark.parametrize("version", ["kubeflow.org/v1", "kubeflow.org/v1beta2"])
def test_older_tfjobs_have_the_run_policy_in_their_spec(version: str) -> None:
    text = kubeflow(
        "TFJob", "tfReplicaSpecs", f"Worker: {{{role()}}}", "cleanPodPolicy: None\nbackoffLimit: 0", version
    )
    assert body(text)["restart"] == "never"
    assert codes(text) == [("CLEAN_UP", 5, 3)]


WORKERS = f"Worker: {{replicas: 2, {role()}}}"


@pytest.mark.parametrize(
    ("specs", "line", "expected"),
    [
        (WORKERS, "", "first-worker"),
        (WORKERS, "successPolicy: ''", "first-worker"),
        (WORKERS, "successPolicy: AllWorkers", None),
        (f"Chief: {{{role()}}}\n{WORKERS}", "", None),
        (f"Master: {{{role()}}}\n{WORKERS}", "successPolicy: AllWorkers", None),
    ],
)
def test_tfjob_success_policy_is_converted(specs: str, line: str, expected: str | None) -> None:
    assert body(kubeflow("TFJob", "tfReplicaSpecs", specs, line)).get("success_policy") == expected


def test_roles_in_containers_have_image_and_whole_command() -> None:
    text = kubeflow("TFJob", "tfReplicaSpecs", f"Worker: {{{role()}}}")
    assert roles_of(text)[0] | {"gpus": 0, "restart": 0} == {
        "name": "worker",
        "command": ["run", "x"],
        "gpus": 0,
        "restart": 0,
        "image": "i:1",
        "entrypoint": [],
    }


def test_pytorchjob_ranks_begin_with_the_master() -> None:
    specs = f"Worker: {{replicas: 2, {role()}}}\nMaster: {{{role()}}}"
    found = body(kubeflow("PyTorchJob", "pytorchReplicaSpecs", specs, "nprocPerNode: '2'"))
    assert [(r["name"], r.get("replicas", 1)) for r in found["roles"]] == [("master", 1), ("worker", 2)]
    assert (found["framework"], found["processes"], found["env"]) == ("torch", 2, {"PYTHONUNBUFFERED": "1"})


def test_elastic_pytorchjobs_start_with_the_least() -> None:
    policy = "elasticPolicy: {minReplicas: 1, maxReplicas: 4, maxRestarts: 9, rdzvBackend: c10d, metrics: [{type: R}]}"
    found = body(kubeflow("PyTorchJob", "pytorchReplicaSpecs", f"Worker: {{replicas: 2, {role()}}}", policy))
    assert (found["gang"], found["on_member_end"], found["backoff_limit"]) == ({"workers": 4, "min": 1}, "continue", 9)
    specs = f"Worker: {{{role()}}}\nMaster: {{{role()}}}"
    with pytest.raises(GpupoolError, match=r"a\.yaml:5:3: .* needs workers only"):
        read(kubeflow("PyTorchJob", "pytorchReplicaSpecs", specs, policy))


@pytest.mark.parametrize("version", ["kubeflow.org/v1", "kubeflow.org/v2beta1"])
def test_mpijob_workers_run_processes_of_launcher(version: str) -> None:
    specs = f"Launcher: {{{role()}}}\nWorker: {{replicas: 2, {role('resources: {limits: {nvidia.com/gpu: 4}}')}}}"
    found = body(kubeflow("MPIJob", "mpiReplicaSpecs", specs, "slotsPerWorker: 4", version), containers=False)
    assert (found["framework"], found["processes"]) == ("mpi", 4)
    assert [r.get("command") for r in found["roles"]] == [["run", "x"], None]
    assert [r["gpus"] for r in found["roles"]] == [{"count": 0}, {"count": 4}]


def test_launcher_as_worker_counts_as_one_more_worker() -> None:
    specs = f"Launcher: {{{role()}}}\nWorker: {{replicas: 2, {role()}}}"
    text = kubeflow("MPIJob", "mpiReplicaSpecs", specs, "runLauncherAsWorker: true", "kubeflow.org/v2beta1")
    assert [r.get("replicas", 1) for r in roles_of(text)] == [1, 3]
    alone = kubeflow(
        "MPIJob", "mpiReplicaSpecs", f"Launcher: {{{role()}}}", "runLauncherAsWorker: true", "kubeflow.org/v2beta1"
    )
    assert [(r["name"], r.get("command")) for r in roles_of(alone)] == [("launcher", ["run", "x"]), ("worker", None)]


def test_trainjob_of_built_in_runtime_is_converted() -> None:
    ref = "runtimeRef: {apiGroup: trainer.kubeflow.org, kind: ClusterTrainingRuntime, name: torch-distributed}"
    trainer = (
        "numNodes: 3\ncommand: [torchrun, t.py]\nenv: [{name: A, value: b}]\n"
        "resourcesPerNode: {requests: {cpu: 2, memory: 4Gi}, limits: {cpu: 4, memory: 8Gi}}"
    )
    found = body(train(f"{ref}\nsuspend: true", trainer))
    node = found["roles"][0]
    assert (found["framework"], found["processes"]) == ("torch", 2)
    assert (node["name"], node["replicas"], node["command"]) == ("node", 3, ["torchrun", "t.py"])
    assert (node["cpus"], node["memory"], node["env"]) == (4.0, 8192, {"A": "b"})
    assert node["image"].startswith("docker.io/pytorch/pytorch:")
    assert read(train(f"{ref}\nsuspend: true", trainer)).objects[0].suspended is True


RUNTIME = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: mine}
spec:
  mlPolicy: {numNodes: 2, torch: {numProcPerNode: 2}}
  template:
    spec:
      replicatedJobs:
      - name: fetch
        template: {spec: {template: {spec: {containers: [{name: f, image: f}]}}}}
      - name: node
        template:
          spec:
            backoffLimit: 0
            template:
              spec:
                nodeSelector: {a: '1'}
                containers:
                - {name: node, image: base:1, command: [old], args: [older], env: [{name: A, value: base}]}
"""


def test_trainjob_overrides_patches_and_patches_override_runtime() -> None:
    spec = """\
runtimeRef: {name: mine}
runtimePatches:
- manager: me
  trainingRuntimeSpec:
    template:
      spec:
        replicatedJobs:
        - name: node
          template:
            spec:
              template:
                metadata: {labels: {team: x}}
                spec: {nodeSelector: {b: '2'}, serviceAccountName: sa}
"""
    text = train(spec, "command: [new]\nenv: [{name: B, value: own}]", RUNTIME)
    found = body(text)
    node = found["roles"][0]
    assert (found["processes"], found["restart"], found["labels"]) == (2, "never", {"team": "x"})
    assert (node["command"], node["image"], node["env"]) == (["new"], "base:1", {"A": "base", "B": "own"})
    assert (node["replicas"], node["gpus"]["labels"]) == (2, {"a": "1", "b": "2"})
    assert [(code, line) for code, line, _ in codes(text)] == [("CONTAINER_LEFT_OUT", 9), ("FIELD_IGNORED", 37)]


def test_mpi_trainjob_has_a_launcher() -> None:
    text = train("runtimeRef: {name: deepspeed-distributed}", "numNodes: 2\nnumProcPerNode: 1\ncommand: [mpirun, run]")
    found = body(text)
    assert (found["framework"], [r["name"] for r in found["roles"]]) == ("mpi", ["launcher", "node"])
    assert [r.get("command") for r in found["roles"]] == [["mpirun", "run"], None]


BOTH = f"Launcher: {{{role()}}}\nWorker: {{{role()}}}"
WITH_JAX = RUNTIME.replace("torch:", "jax:")
BAD = [
    (kubeflow("TFJob", "tfReplicaSpecs", f"Wroker: {{{role()}}}"), "6:5", "There is no role 'Wroker'"),
    (kubeflow("TFJob", "tfReplicaSpecs", "Worker: {replicas: 1}"), "6:5", "needs a 'template'"),
    (kubeflow("TFJob", "tfReplicaSpecs", f"Worker: {{replicas: -1, {role()}}}"), "6:14", "must be a whole number"),
    (kubeflow("TFJob", "tfReplicaSpec", f"Worker: {{{role()}}}"), "5:3", "There is no field 'spec.tfReplicaSpec'"),
    (kubeflow("PyTorchJob", "pytorchReplicaSpecs", "{}"), "4:1", "needs 'pytorchReplicaSpecs'"),
    (kubeflow("MPIJob", "mpiReplicaSpecs", f"Worker: {{{role()}}}"), "4:1", "needs one 'Launcher'"),
    (
        kubeflow("MPIJob", "mpiReplicaSpecs", BOTH, "mpiImplementation: Intel"),
        "5:3",
        "'Intel' is not a supported MPI",
    ),
    (train("runtimeRef: {name: other}"), "5:16", "There is no training runtime 'other'"),
    (train("runtimeRef: {name: mine}", "{}", WITH_JAX), "5:27", "JAX"),
    (
        kubeflow("TFJob", "tfReplicaSpecs", f"PS: {{{role('workingDir: /a')}}}\nWorker: {{{role('workingDir: /b')}}}"),
        "6:",
        "differs from another role in a common field: workdir",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "words"), BAD, ids=[case[2][:30] for case in BAD])
def test_unsupported_field_is_refused_with_its_position(text: str, place: str, words: str) -> None:
    with pytest.raises(GpupoolError) as caught:
        read(text)
    assert f"a.yaml:{place}" in caught.value.message
    assert words in caught.value.message


def noted(template: str, note: str) -> str:
    """Return a template with an annotation of Kueue."""
    return template.replace("{spec:", f"{{metadata: {{annotations: {{kueue.x-k8s.io/{note}}}}}, spec:")


@pytest.mark.parametrize(
    ("note", "gang"),
    [
        ("podset-required-topology: rack", {"workers": 3, "within": "rack", "strict": True}),
        ("podset-preferred-topology: example.com/block", {"workers": 3, "within": "example.com/block"}),
        ("podset-required-topology: kubernetes.io/hostname", {"workers": 3, "within": "node", "strict": True}),
    ],
)
def test_topology_of_kueue_applies_to_the_gang(note: str, gang: dict[str, Any]) -> None:
    specs = f"Master: {{{noted(role(), note)}}}\nWorker: {{replicas: 2, {noted(role(), note)}}}"
    text = kubeflow("PyTorchJob", "pytorchReplicaSpecs", specs)
    assert body(text)["gang"] == gang
    assert codes(text) == []


def test_topology_of_an_elastic_job_keeps_its_sizes() -> None:
    specs = f"Worker: {{replicas: 4, {noted(role(), 'podset-preferred-topology: rack')}}}"
    text = kubeflow("PyTorchJob", "pytorchReplicaSpecs", specs, "elasticPolicy: {minReplicas: 2, maxReplicas: 6}")
    assert body(text)["gang"] == {"workers": 6, "min": 2, "within": "rack"}


def test_topology_of_one_role_is_that_of_the_gang_and_two_must_be_equal() -> None:
    worker = f"Worker: {{replicas: 2, {noted(role(), 'podset-required-topology: rack')}}}"
    text = kubeflow("PyTorchJob", "pytorchReplicaSpecs", f"Master: {{{role()}}}\n{worker}")
    assert body(text)["gang"] == {"workers": 3, "within": "rack", "strict": True}
    master = f"Master: {{{noted(role(), 'podset-required-topology: block')}}}"
    with pytest.raises(GpupoolError, match="differs from another role"):
        read(kubeflow("PyTorchJob", "pytorchReplicaSpecs", f"{master}\n{worker}"))
