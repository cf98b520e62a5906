"""What becomes of every field of a Pod and of what holds one. ``docs/kubernetes.md`` shows these tables."""

from __future__ import annotations

from gpupool.specs.kubernetes.reading import Fields, Rule, Treatment


def honoured(why: str = "") -> Rule:
    """It means here what it means in a cluster, or what ``why`` says."""
    return Rule(Treatment.HONOURED, why)


def met(why: str) -> Rule:
    """Nothing is lost: what it asks for holds here anyway, or it has nothing to act on."""
    return Rule(Treatment.MET, why)


def warned(why: str) -> Rule:
    """It is left out, and a warning says so."""
    return Rule(Treatment.WARNED, why)


def refused(why: str, hint: str = "") -> Rule:
    """Without it the program would not be what was asked for."""
    return Rule(Treatment.REFUSED, why, hint)


_CLUSTERS = met("a cluster wrote it; it says nothing of what to run")
_NO_PROBES = warned("a program counts as well while it runs")
_NO_NAMES = warned("programs are on the machine's own network, under its name")

DOCUMENT: Fields = {
    "apiVersion": honoured(),
    "kind": honoured(),
    "metadata": honoured(),
    "spec": honoured(),
    "status": _CLUSTERS,
}
METADATA: Fields = {
    "name": honoured("the workload's name"),
    "generateName": honoured("a name is made from it, and every apply makes a new object"),
    "namespace": honoured("the project, where the pool has one of that name; else a warning, and your default project"),
    "labels": honoured("the workload's labels; those of queues choose the project"),
    "annotations": honoured("those for GPUs; see below"),
    "creationTimestamp": _CLUSTERS,
    "deletionGracePeriodSeconds": _CLUSTERS,
    "deletionTimestamp": _CLUSTERS,
    "generation": _CLUSTERS,
    "managedFields": _CLUSTERS,
    "resourceVersion": _CLUSTERS,
    "selfLink": _CLUSTERS,
    "uid": _CLUSTERS,
    "finalizers": warned("nothing here waits for them"),
    "ownerReferences": warned("an object is not deleted with another one"),
}
TEMPLATE: Fields = {
    "metadata": honoured("its labels, and its annotations for GPUs"),
    "spec": honoured(),
}
POD: Fields = {
    "containers": honoured("one program; see 'Several containers'"),
    "initContainers": refused("a pod runs one program.", "Put what it does at the beginning of the command."),
    "ephemeralContainers": refused("a pod runs one program.", "See 'gpupool exec'."),
    "restartPolicy": honoured(),
    "terminationGracePeriodSeconds": honoured("30 when absent, as in a cluster"),
    "activeDeadlineSeconds": honoured("the longest running time of each program"),
    "nodeSelector": honoured("labels of nodes; those that name a GPU product choose the model"),
    "nodeName": honoured("the node of that name only"),
    "affinity": honoured("required node affinity that asks for labels or GPU products by In; see below"),
    "priorityClassName": honoured("train, build, build-preemptible and inference as in KAI; low, normal, high"),
    "volumes": honoured("hostPath and emptyDir"),
    "securityContext": honoured("runAsUser and runAsGroup, in a container"),
    "tolerations": met("nodes have no taints"),
    "schedulerName": met("the pool's own scheduler places everything"),
    "runtimeClassName": met("GPUs are given without one"),
    "dnsPolicy": met("programs resolve names as their machine does"),
    "enableServiceLinks": met("there are no services to be told of"),
    "automountServiceAccountToken": met("there is no token to mount"),
    "hostNetwork": met("programs are on the machine's own network"),
    "hostUsers": met("programs run as the machine's own users"),
    "os": met("every node runs Linux"),
    "serviceAccount": warned("there are no service accounts; programs run as whoever applies"),
    "serviceAccountName": warned("there are no service accounts; programs run as whoever applies"),
    "hostIPC": warned("a container has its own"),
    "hostPID": warned("a container has its own"),
    "shareProcessNamespace": warned("there is one program"),
    "hostAliases": _NO_NAMES,
    "hostname": _NO_NAMES,
    "subdomain": _NO_NAMES,
    "setHostnameAsFQDN": _NO_NAMES,
    "dnsConfig": warned("programs resolve names as their machine does"),
    "imagePullSecrets": warned("the node's own log-in to the registry is used"),
    "topologySpreadConstraints": warned("the pool places by what stays of use; see placement"),
    "readinessGates": _NO_PROBES,
    "priority": warned("the priority class says it"),
    "preemptionPolicy": warned("who may be interrupted follows from quotas and the kind of work"),
    "overhead": warned("only what the program asks for is counted"),
    "resourceClaims": refused("GPUs are asked for by number.", "Write resources: {limits: {nvidia.com/gpu: 1}}."),
    "schedulingGates": refused("nothing would open them.", "Suspend a Job, or submit it when it may start."),
    "resources": refused("it is for the whole pod.", "Write it in the container."),
}
CONTAINER: Fields = {
    "name": honoured(),
    "image": honoured("where the pool runs containers; see 'Images'"),
    "imagePullPolicy": honoured(),
    "command": honoured("replaces the image's entry point"),
    "args": honoured(),
    "workingDir": honoured(),
    "env": honoured("value, fieldRef, resourceFieldRef, and configMapKeyRef of a ConfigMap in the same file"),
    "envFrom": honoured("ConfigMaps of the same file"),
    "resources": honoured(),
    "volumeMounts": honoured(),
    "securityContext": honoured("runAsUser and runAsGroup, in a container"),
    "stdin": honoured(),
    "tty": honoured(),
    "ports": met("they only inform: what listens is reached at the node's address"),
    "terminationMessagePath": met("the end of the log says it"),
    "terminationMessagePolicy": met("the end of the log says it"),
    "resizePolicy": met("what a program has does not change while it runs"),
    "stdinOnce": warned("standard input stays open"),
    "livenessProbe": _NO_PROBES,
    "readinessProbe": _NO_PROBES,
    "startupProbe": _NO_PROBES,
    "lifecycle": warned("nothing runs before its start; before its end the program gets TERM"),
    "restartPolicy": warned("the pod's decides"),
    "restartPolicyRules": warned("the pod's policy decides"),
    "volumeDevices": refused("block devices are not handed out.", "Use a volume."),
}
SECURITY: Fields = {
    "runAsUser": honoured("in a container; otherwise programs run as whoever applies"),
    "runAsGroup": honoured("in a container, with runAsUser"),
    "runAsNonRoot": met("the user that is chosen decides"),
    "allowPrivilegeEscalation": met("never more than the user has"),
    "privileged": refused("programs get no rights over the machine.", "Leave it out; GPUs are given without it."),
    "capabilities": warned("no capabilities are added; none is needed for GPUs"),
    "fsGroup": warned("files keep their groups"),
    "fsGroupChangePolicy": warned("files keep their groups"),
    "supplementalGroups": warned("the user's own groups are used"),
    "supplementalGroupsPolicy": warned("the user's own groups are used"),
    "readOnlyRootFilesystem": warned("the container's own layer can be written; it goes with it"),
    "procMount": warned("the runtime's own is used"),
    "seccompProfile": warned("the runtime's own profile is used"),
    "appArmorProfile": warned("the machine's own profile is used"),
    "seLinuxOptions": warned("the machine's own labels are used"),
    "seLinuxChangePolicy": warned("the machine's own labels are used"),
    "sysctls": warned("the machine's own settings are used"),
    "windowsOptions": refused("every node runs Linux."),
}
RESOURCES: Fields = {
    "limits": honoured(),
    "requests": honoured("where there is no limit"),
    "claims": refused("GPUs are asked for by number.", "Write limits: {nvidia.com/gpu: 1}."),
}
VARIABLE: Fields = {"name": honoured(), "value": honoured(), "valueFrom": honoured()}
VALUE_FROM: Fields = {
    "fieldRef": honoured("metadata.name, .namespace, .uid, labels, annotations; spec.nodeName; status.hostIP, podIP"),
    "resourceFieldRef": honoured("limits and requests of cpu and memory"),
    "configMapKeyRef": honoured("of a ConfigMap in the same file"),
    "secretKeyRef": refused("the pool keeps no secrets.", "Read it from a file that only you can read."),
    "fileKeyRef": refused("variables come from the manifest.", "Set it in the command."),
}
ENV_FROM: Fields = {
    "prefix": honoured(),
    "configMapRef": honoured("of a ConfigMap in the same file"),
    "secretRef": refused("the pool keeps no secrets.", "Read it from a file that only you can read."),
}
MOUNT: Fields = {
    "name": honoured(),
    "mountPath": honoured(),
    "readOnly": honoured(),
    "subPath": honoured("of a hostPath"),
    "subPathExpr": refused("it is not expanded.", "Write subPath."),
    "mountPropagation": warned("what is mounted later is not seen"),
    "recursiveReadOnly": warned("readOnly holds for the folder that is mounted"),
}
HOST_PATH: Fields = {
    "path": honoured(),
    "type": met("the folder or file must be there; it is not made"),
}
EMPTY_DIR: Fields = {
    "medium": honoured("Memory; anything else is the node's disk"),
    "sizeLimit": honoured("of one in memory"),
}
JOB: Fields = {
    "template": honoured(),
    "parallelism": honoured("1 when absent; 0 suspends"),
    "completions": honoured("without it, and with parallelism, as many as parallelism"),
    "completionMode": honoured("Indexed sets JOB_COMPLETION_INDEX"),
    "backoffLimit": honoured("counted for each index by itself; 6 when absent"),
    "backoffLimitPerIndex": honoured(),
    "activeDeadlineSeconds": honoured("the longest running time of each program"),
    "ttlSecondsAfterFinished": honoured(),
    "suspend": honoured(),
    "selector": _CLUSTERS,
    "manualSelector": _CLUSTERS,
    "podReplacementPolicy": met("a pod is replaced when nothing of it is left"),
    "maxFailedIndexes": warned("the other indexes run to their end"),
    "podFailurePolicy": warned("every failure counts alike, losses of the pool never"),
    "successPolicy": warned("it succeeds when every index has"),
    "managedBy": refused("the pool itself runs it.", "Leave it out."),
}
