"""The kinds of objects, and what people call them on the command line."""

from __future__ import annotations

from dataclasses import dataclass

KIND_LABEL = "gpupool/kind"  # of a workload that was made from a manifest
DIGEST_LABEL = "gpupool/applied"  # what the manifest asked for, in short
NAMESPACE_LABEL = "gpupool/namespace"  # as the manifest had it


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: in manifests, in ``kind/name`` of answers, and in what people type."""

    name: str
    versions: tuple[str, ...]
    plural: str
    group: str
    short: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        """As answers name it: ``pod``, ``job.batch``, ``tfjob.kubeflow.org``."""
        singular = self.name.lower()
        return f"{singular}.{self.group}" if self.group else singular

    @property
    def words(self) -> tuple[str, ...]:
        """What people may type for it."""
        singular = self.name.lower()
        full = (self.resource, f"{self.plural}.{self.group}") if self.group else ()
        return (singular, self.plural, *self.short, *full)


POD = Kind("Pod", ("v1",), "pods", "", ("po",))
JOB = Kind("Job", ("batch/v1",), "jobs", "batch")
TFJOB = Kind("TFJob", ("kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1"), "tfjobs", "kubeflow.org")
PYTORCHJOB = Kind("PyTorchJob", ("kubeflow.org/v1", "kubeflow.org/v1beta2"), "pytorchjobs", "kubeflow.org")
MPIJOB = Kind("MPIJob", ("kubeflow.org/v2beta1", "kubeflow.org/v1", "kubeflow.org/v1alpha2"), "mpijobs", "kubeflow.org")
TRAINJOB = Kind("TrainJob", ("trainer.kubeflow.org/v1alpha1",), "trainjobs", "trainer.kubeflow.org")
KINDS = (POD, JOB, TFJOB, PYTORCHJOB, MPIJOB, TRAINJOB)
BY_NAME = {kind.name: kind for kind in KINDS}
BY_WORD = {word: kind for kind in KINDS for word in kind.words}

# Kinds that stand beside work in a file and are read with it.
COMPANIONS = {"ConfigMap", "ClusterTrainingRuntime", "TrainingRuntime"}
# Kinds that prepare a cluster for work, and why they have nothing to do here.
SKIPPED = {
    "Namespace": "projects are made by their administrators ('gpupool project create')",
    "PersistentVolume": "folders of the nodes are there already; mount them by hostPath",
    "PersistentVolumeClaim": "there is no storage to claim; mount a folder of the nodes by hostPath",
    "StorageClass": "there is no storage to claim",
    "Service": "programs are reached at the address of their node",
    "ServiceAccount": "programs run as whoever applies",
    "Role": "roles of the pool are given by its administrators",
    "RoleBinding": "roles of the pool are given by its administrators",
    "ClusterRole": "roles of the pool are given by its administrators",
    "ClusterRoleBinding": "roles of the pool are given by its administrators",
    "ResourceQuota": "quotas are those of the project",
    "LimitRange": "limits are those of the project",
    "PriorityClass": "priorities are low, normal, high, or a number",
    "Queue": "queues are the pool's projects and departments",
    "LocalQueue": "queues are the pool's projects and departments",
    "ClusterQueue": "queues are the pool's projects and departments",
    "PodGroup": "the members of a training job start together anyway",
    "RuntimeClass": "GPUs are given without one",
    "CustomResourceDefinition": "the kinds that the pool reads are built in",
    "ComputeDomain": "GPUs are asked for by number",
}
