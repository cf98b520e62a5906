"""The treatment of every field of a Pod and its parts. ``docs/kubernetes-fields.md`` shows these tables."""

from __future__ import annotations

from gpupool.specs.kubernetes.reading import Fields, Rule, Treatment


def supported(why: str = "") -> Rule:
    """Mark a field with the same meaning as in a cluster, or with the meaning in ``why``."""
    return Rule(Treatment.SUPPORTED, why)


def not_needed(why: str) -> Rule:
    """Mark a field that needs nothing: it is always true in a pool, or has no effect."""
    return Rule(Treatment.NOT_NEEDED, why)


def ignored(why: str) -> Rule:
    """Mark a field that is ignored with a warning."""
    return Rule(Treatment.IGNORED, why)


def rejected(why: str, hint: str = "") -> Rule:
    """Mark a field whose absence would change the program, so that the manifest is rejected."""
    return Rule(Treatment.REJECTED, why, hint)


_CLUSTERS = not_needed("written by a cluster; it does not affect the program")
_NO_PROBES = ignored("a running program counts as healthy")
_NO_NAMES = ignored("programs use the network and the host name of the node")

DOCUMENT: Fields = {
    "apiVersion": supported(),
    "kind": supported(),
    "metadata": supported(),
    "spec": supported(),
    "status": _CLUSTERS,
}
METADATA: Fields = {
    "name": supported("the workload's name"),
    "generateName": supported("a name is generated from it; every apply creates a new object"),
    "namespace": supported("the project of that name; if there is none, a warning and your default project"),
    "labels": supported("the workload's labels; queue labels select the project"),
    "annotations": supported("annotations for GPUs; see below"),
    "creationTimestamp": _CLUSTERS,
    "deletionGracePeriodSeconds": _CLUSTERS,
    "deletionTimestamp": _CLUSTERS,
    "generation": _CLUSTERS,
    "managedFields": _CLUSTERS,
    "resourceVersion": _CLUSTERS,
    "selfLink": _CLUSTERS,
    "uid": _CLUSTERS,
    "finalizers": ignored("the pool has no finalizers"),
    "ownerReferences": ignored("an object is not deleted with its owner"),
}
TEMPLATE: Fields = {
    "metadata": supported("labels, and annotations for GPUs"),
    "spec": supported(),
}
POD: Fields = {
    "containers": supported("one program; see 'Several containers'"),
    "initContainers": rejected("a pod runs one program.", "Do its work at the start of the command."),
    "ephemeralContainers": rejected("a pod runs one program.", "See 'gpupool exec'."),
    "restartPolicy": supported(),
    "terminationGracePeriodSeconds": supported("default 30, as in a cluster"),
    "activeDeadlineSeconds": supported("the time limit of each program"),
    "nodeSelector": supported("labels of nodes; labels with a GPU product select the model"),
    "nodeName": supported("only the node of that name"),
    "affinity": supported("required node affinity for labels or GPU products with the operator In; see below"),
    "priorityClassName": supported("train, build, build-preemptible and inference as in KAI; low, normal, high"),
    "volumes": supported("hostPath and emptyDir"),
    "securityContext": supported("runAsUser and runAsGroup, in a container"),
    "tolerations": not_needed("nodes have no taints"),
    "schedulerName": not_needed("the scheduler of the pool places all workloads"),
    "runtimeClassName": not_needed("GPUs need none"),
    "dnsPolicy": not_needed("programs resolve names as their node does"),
    "enableServiceLinks": not_needed("there are no services"),
    "automountServiceAccountToken": not_needed("there are no service account tokens"),
    "hostNetwork": not_needed("programs use the network of the node"),
    "hostUsers": not_needed("programs run as users of the node"),
    "os": not_needed("every node runs Linux"),
    "serviceAccount": ignored("there are no service accounts; programs run as the user who applies the manifest"),
    "serviceAccountName": ignored("there are no service accounts; programs run as the user who applies the manifest"),
    "hostIPC": ignored("each container has its own"),
    "hostPID": ignored("each container has its own"),
    "shareProcessNamespace": ignored("a pod runs one program"),
    "hostAliases": _NO_NAMES,
    "hostname": _NO_NAMES,
    "subdomain": _NO_NAMES,
    "setHostnameAsFQDN": _NO_NAMES,
    "dnsConfig": ignored("programs resolve names as their node does"),
    "imagePullSecrets": ignored("the registry login of the node is used"),
    "topologySpreadConstraints": ignored("the pool places workloads to limit fragmentation; see placement"),
    "readinessGates": _NO_PROBES,
    "priority": ignored("the priority class decides"),
    "preemptionPolicy": ignored("quotas and the kind of workload decide about preemption"),
    "overhead": ignored("only requests of the program count"),
    "resourceClaims": rejected("GPUs are requested by number.", "Write resources: {limits: {nvidia.com/gpu: 1}}."),
    "schedulingGates": rejected("nothing removes the gates.", "Suspend a Job, or submit it when it may start."),
    "resources": rejected("it applies to the whole pod.", "Write it in the container."),
}
CONTAINER: Fields = {
    "name": supported(),
    "image": supported("if the pool runs containers; see 'Images'"),
    "imagePullPolicy": supported(),
    "command": supported("replaces the image's entry point"),
    "args": supported(),
    "workingDir": supported(),
    "env": supported("value, fieldRef, resourceFieldRef, and configMapKeyRef of a ConfigMap in the same file"),
    "envFrom": supported("ConfigMaps of the same file"),
    "resources": supported(),
    "volumeMounts": supported(),
    "securityContext": supported("runAsUser and runAsGroup, in a container"),
    "stdin": supported(),
    "tty": supported(),
    "ports": not_needed("informative only: ports are reached at the node's address"),
    "terminationMessagePath": not_needed("the end of the log shows it"),
    "terminationMessagePolicy": not_needed("the end of the log shows it"),
    "resizePolicy": not_needed("resources of a running program do not change"),
    "stdinOnce": ignored("standard input stays open"),
    "livenessProbe": _NO_PROBES,
    "readinessProbe": _NO_PROBES,
    "startupProbe": _NO_PROBES,
    "lifecycle": ignored("there are no start hooks; before its end the program gets TERM"),
    "restartPolicy": ignored("the restart policy of the pod applies"),
    "restartPolicyRules": ignored("the restart policy of the pod applies"),
    "volumeDevices": rejected("the pool has no block devices.", "Use a volume."),
}
SERVER: Fields = {
    **CONTAINER,
    "readinessProbe": supported("the readiness check of each replica"),
    "ports": supported("the first port, or that of the Service, is replaced by a port of each replica"),
}
SECURITY: Fields = {
    "runAsUser": supported("in a container; otherwise programs run as the user who applies the manifest"),
    "runAsGroup": supported("in a container, with runAsUser"),
    "runAsNonRoot": not_needed("the selected user decides"),
    "allowPrivilegeEscalation": not_needed("a program never has more privileges than its user"),
    "privileged": rejected("programs get no privileges on the node.", "Leave it out; GPUs do not need it."),
    "capabilities": ignored("no capabilities are added; GPUs need none"),
    "fsGroup": ignored("files keep their group"),
    "fsGroupChangePolicy": ignored("files keep their group"),
    "supplementalGroups": ignored("the groups of the user are used"),
    "supplementalGroupsPolicy": ignored("the groups of the user are used"),
    "readOnlyRootFilesystem": ignored("the container layer is writable and is deleted with the container"),
    "procMount": ignored("the default of the runtime is used"),
    "seccompProfile": ignored("the profile of the runtime is used"),
    "appArmorProfile": ignored("the profile of the node is used"),
    "seLinuxOptions": ignored("the labels of the node are used"),
    "seLinuxChangePolicy": ignored("the labels of the node are used"),
    "sysctls": ignored("the settings of the node are used"),
    "windowsOptions": rejected("every node runs Linux."),
}
RESOURCES: Fields = {
    "limits": supported(),
    "requests": supported("used where there is no limit"),
    "claims": rejected("GPUs are requested by number.", "Write limits: {nvidia.com/gpu: 1}."),
}
VARIABLE: Fields = {"name": supported(), "value": supported(), "valueFrom": supported()}
VALUE_FROM: Fields = {
    "fieldRef": supported("metadata.name, .namespace, .uid, labels, annotations; spec.nodeName; status.hostIP, podIP"),
    "resourceFieldRef": supported("limits and requests of cpu and memory"),
    "configMapKeyRef": supported("from a ConfigMap in the same file"),
    "secretKeyRef": rejected("the pool stores no secrets.", "Read it from a file that only you can read."),
    "fileKeyRef": rejected("variables come from the manifest.", "Set it in the command."),
}
ENV_FROM: Fields = {
    "prefix": supported(),
    "configMapRef": supported("from a ConfigMap in the same file"),
    "secretRef": rejected("the pool stores no secrets.", "Read it from a file that only you can read."),
}
MOUNT: Fields = {
    "name": supported(),
    "mountPath": supported(),
    "readOnly": supported(),
    "subPath": supported("of a hostPath"),
    "subPathExpr": rejected("variables are not expanded in it.", "Write subPath."),
    "mountPropagation": ignored("later mounts are not visible"),
    "recursiveReadOnly": ignored("readOnly applies to the mounted folder only"),
}
HOST_PATH: Fields = {
    "path": supported(),
    "type": not_needed("the folder or file must exist; it is not created"),
}
EMPTY_DIR: Fields = {
    "medium": supported("Memory; any other value uses the node's disk"),
    "sizeLimit": supported("for the medium Memory"),
}
JOB: Fields = {
    "template": supported(),
    "parallelism": supported("default 1; 0 suspends"),
    "completions": supported("default: parallelism"),
    "completionMode": supported("Indexed sets JOB_COMPLETION_INDEX"),
    "backoffLimit": supported("counted for each index; default 6"),
    "backoffLimitPerIndex": supported(),
    "activeDeadlineSeconds": supported("the time limit of each program"),
    "ttlSecondsAfterFinished": supported(),
    "suspend": supported(),
    "selector": _CLUSTERS,
    "manualSelector": _CLUSTERS,
    "podReplacementPolicy": not_needed("a pod is replaced when all its processes have ended"),
    "maxFailedIndexes": ignored("the other indexes continue"),
    "podFailurePolicy": ignored("all failures count equally; node losses do not count"),
    "successPolicy": ignored("it succeeds when every index has succeeded"),
    "managedBy": rejected("the pool runs it.", "Leave it out."),
}
DEPLOYMENT: Fields = {
    "replicas": supported("default 1; 0 stops the service"),
    "template": supported(),
    "strategy": supported(),
    "progressDeadlineSeconds": supported("time until a replica must be ready; default 600"),
    "selector": not_needed("a service has its own replicas"),
    "revisionHistoryLimit": not_needed("the last ten revisions are kept"),
    "minReadySeconds": ignored("a replica gets requests as soon as it is ready"),
    "paused": rejected("changes are applied at once.", "Apply it when it may change."),
}
STRATEGY: Fields = {
    "type": supported("Recreate stops each replica before its successor starts"),
    "rollingUpdate": supported(),
}
ROLLING_UPDATE: Fields = {
    "maxSurge": supported("default 25%"),
    "maxUnavailable": supported("with maxSurge 0 one replica at a time is missing, otherwise none"),
}
PROBE: Fields = {
    "httpGet": supported(),
    "tcpSocket": supported(),
    "exec": supported("where the replica runs, also in its container"),
    "periodSeconds": supported("default 10"),
    "timeoutSeconds": supported("default 1; up to 30 for a command"),
    "failureThreshold": supported("default 3"),
    "initialDelaySeconds": not_needed("failed checks before the first success do no harm"),
    "successThreshold": ignored("one successful check suffices"),
    "terminationGracePeriodSeconds": ignored("that of the pod is used"),
    "grpc": rejected("the pool has no check by gRPC.", "Use 'tcpSocket' or 'exec'."),
}
HTTP_GET: Fields = {
    "path": supported(),
    "port": supported("the port to which requests go"),
    "scheme": supported("HTTP only"),
    "host": ignored("the replica itself is checked"),
    "httpHeaders": ignored("the check sends none"),
}
TCP_SOCKET: Fields = {
    "port": supported("the port to which requests go"),
    "host": ignored("the replica itself is checked"),
}
EXEC_ACTION: Fields = {"command": supported()}
CONTAINER_PORT: Fields = {
    "containerPort": supported(),
    "name": supported(),
    "protocol": not_needed("the gateway carries HTTP over TCP"),
    "hostPort": ignored("each replica has its own port of the node"),
    "hostIP": ignored("each replica has its own port of the node"),
}
SERVICE: Fields = {
    "selector": supported("Deployments of the same file whose pods have these labels"),
    "ports": supported("targetPort of the first one is the port of the server"),
    "type": not_needed("the gateway is the only way to a service"),
    "clusterIP": not_needed("the gateway is the only way to a service"),
    "clusterIPs": not_needed("the gateway is the only way to a service"),
    "ipFamilies": not_needed("the gateway is the only way to a service"),
    "ipFamilyPolicy": not_needed("the gateway is the only way to a service"),
    "internalTrafficPolicy": not_needed("the gateway is the only way to a service"),
    "externalTrafficPolicy": not_needed("the gateway is the only way to a service"),
    "allocateLoadBalancerNodePorts": not_needed("the gateway is the only way to a service"),
    "healthCheckNodePort": ignored("the gateway has no port for each service"),
    "sessionAffinity": ignored("a request goes to the replica with the fewest requests"),
    "sessionAffinityConfig": ignored("a request goes to the replica with the fewest requests"),
    "trafficDistribution": ignored("a request goes to the replica with the fewest requests"),
    "publishNotReadyAddresses": ignored("only ready replicas get requests"),
    "externalIPs": ignored("the address is that of the gateway"),
    "externalName": ignored("the address is that of the gateway"),
    "loadBalancerIP": ignored("the address is that of the gateway"),
    "loadBalancerClass": ignored("the address is that of the gateway"),
    "loadBalancerSourceRanges": ignored("access is by tokens"),
}
SERVICE_PORT: Fields = {
    "port": not_needed("the gateway has one port for all services"),
    "targetPort": supported("number, or name of the container's port"),
    "name": not_needed("a service has one port"),
    "protocol": supported("TCP"),
    "appProtocol": not_needed("the gateway carries HTTP"),
    "nodePort": ignored("the gateway has one port for all services"),
}
