"""The kinds of objects, and their names on the command line."""

from __future__ import annotations

from dataclasses import dataclass

KIND_LABEL = "gpupool/kind"  # of a workload that was made from a manifest
DIGEST_LABEL = "gpupool/applied"  # a digest of the manifest's request


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: its names in manifests, in ``kind/name`` of answers, and in commands."""

    name: str
    versions: tuple[str, ...]
    plural: str
    group: str
    short: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        """Return its name in answers: ``pod``, ``job.batch``, ``tfjob.kubeflow.org``."""
        singular = self.name.lower()
        return f"{singular}.{self.group}" if self.group else singular

    @property
    def words(self) -> tuple[str, ...]:
        """Return its names in commands."""
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

# Kinds that are read with the work of the same file; alone in a file they have no effect.
COMPANIONS = {"ConfigMap", "ClusterTrainingRuntime", "TrainingRuntime"}
# Kinds that prepare a cluster for work, and why they have no effect here.
SKIPPED = {
    "Namespace": "administrators create projects ('gpupool project create')",
    "PersistentVolume": "mount folders of the nodes with hostPath",
    "PersistentVolumeClaim": "there are no storage claims; mount a folder of the nodes with hostPath",
    "StorageClass": "there are no storage claims",
    "Service": "programs are reached at the address of their node",
    "ServiceAccount": "programs run as the user who applies the manifest",
    "Role": "administrators of the pool assign roles",
    "RoleBinding": "administrators of the pool assign roles",
    "ClusterRole": "administrators of the pool assign roles",
    "ClusterRoleBinding": "administrators of the pool assign roles",
    "ResourceQuota": "projects have quotas",
    "LimitRange": "projects have limits",
    "PriorityClass": "priorities are low, normal, high, or a number",
    "Queue": "projects and departments are the queues",
    "LocalQueue": "projects and departments are the queues",
    "ClusterQueue": "projects and departments are the queues",
    "Cohort": "projects and departments are the queues",
    "ResourceFlavor": "nodes are selected by GPU model and label",
    "Topology": "a node label keeps workers together ('--within LABEL')",
    "AdmissionCheck": "the scheduler of the pool admits workloads",
    "WorkloadPriorityClass": "priorities are low, normal, high, or a number",
    "PodGroup": "members of a training job always start together",
    "RuntimeClass": "GPUs need none",
    "CustomResourceDefinition": "the supported kinds are built in",
    "ComputeDomain": "GPUs are requested by number",
}
