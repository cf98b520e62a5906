"""The kinds of objects, and their names on the command line."""

from __future__ import annotations

from typing import NamedTuple

from gpupool.domain.work.labels import APPLIED_LABEL

KIND_LABEL = "gpupool/kind"  # of a workload that was made from a manifest
DIGEST_LABEL = APPLIED_LABEL  # a digest of the manifest's request
# Annotations of Deployments for fields of services that Deployments do not have.
ACCESS_NOTE, MODEL_NOTE, HOSTS_NOTE, REPLICAS_NOTE = (
    "gpupool/access",
    "gpupool/model",
    "gpupool/hosts",
    "gpupool/replicas",
)


class ManifestKind(NamedTuple):
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


POD = ManifestKind("Pod", ("v1",), "pods", "", ("po",))
JOB = ManifestKind("Job", ("batch/v1",), "jobs", "batch")
TFJOB = ManifestKind(
    "TFJob", ("kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1"), "tfjobs", "kubeflow.org"
)
PYTORCHJOB = ManifestKind("PyTorchJob", ("kubeflow.org/v1", "kubeflow.org/v1beta2"), "pytorchjobs", "kubeflow.org")
MPIJOB = ManifestKind(
    "MPIJob", ("kubeflow.org/v2beta1", "kubeflow.org/v1", "kubeflow.org/v1alpha2"), "mpijobs", "kubeflow.org"
)
TRAINJOB = ManifestKind("TrainJob", ("trainer.kubeflow.org/v1alpha1",), "trainjobs", "trainer.kubeflow.org")
DEPLOYMENT = ManifestKind("Deployment", ("apps/v1",), "deployments", "apps", ("deploy",))
KINDS = (POD, JOB, TFJOB, PYTORCHJOB, MPIJOB, TRAINJOB, DEPLOYMENT)
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
    "Service": "it selects no Deployment of this file, and programs are reached at the address of their node",
    "HorizontalPodAutoscaler": f"write the annotation {REPLICAS_NOTE}: 0..4 in the Deployment",
    "Ingress": f"the gateway is the entry; host names are the annotation {HOSTS_NOTE} of a Deployment",
    "NetworkPolicy": "programs use the network of the node",
    "PodDisruptionBudget": "updates and drains of nodes keep replicas ready",
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
    "Topology": "'gpupool policy set --topology' lists the node labels of the levels",
    "AdmissionCheck": "the scheduler of the pool admits workloads",
    "WorkloadPriorityClass": "priorities are low, normal, high, or a number",
    "PodGroup": "members of a training job always start together",
    "RuntimeClass": "GPUs need none",
    "CustomResourceDefinition": "the supported kinds are built in",
    "ComputeDomain": "GPUs are requested by number",
}
