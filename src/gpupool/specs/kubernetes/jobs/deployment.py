"""Deployments, with the Services that select them, as services of the pool.

Pods of a cluster have network addresses of their own, so all replicas can listen on the same port. Here replicas share
the network of their node, and each one gets a port of its own: the container's port in the command, in variables and in
probes is replaced by ``{port}``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from gpupool.domain.errors import ErrorCode
from gpupool.domain.work.program.supervision import MAX_CHECK_S
from gpupool.domain.work.service import MAX_REPLICAS
from gpupool.specs.kubernetes.field_tables import (
    CONTAINER_PORT,
    DEPLOYMENT,
    EXEC_ACTION,
    HTTP_GET,
    METADATA,
    PROBE,
    ROLLING_UPDATE,
    SERVICE,
    SERVICE_PORT,
    STRATEGY,
    TCP_SOCKET,
)
from gpupool.specs.kubernetes.jobs.pod_job import body_of
from gpupool.specs.kubernetes.kinds import ACCESS_NOTE, HOSTS_NOTE, MODEL_NOTE, REPLICAS_NOTE
from gpupool.specs.kubernetes.pods.pod import Around, PodParts, template_parts
from gpupool.specs.kubernetes.reading import ManifestView
from gpupool.specs.kubernetes.report import ManifestNotice
from gpupool.specs.kubernetes.settings import KubernetesService

Values = dict[str, Any]
PORT = "{port}"
DEFAULT_ROLL = "25%"
DEFAULT_PROGRESS_S = 600
_PERCENT = re.compile(r"([0-9]{1,3})%")


def read_services(views: Sequence[ManifestView]) -> tuple[KubernetesService, ...]:
    """Return the Services of a file; their fields are checked when a Deployment uses them."""
    found = []
    for view in views:
        if isinstance(view.node.value, dict) and view.text("kind") == "Service":
            name, spec = view.follow("metadata", "name"), view.get("spec")
            selector = {} if spec is None else {key: value.scalar() for key, value in spec.pairs("selector").items()}
            ports = [] if spec is None else spec.each("ports")
            first = "" if not ports else ports[0].text("targetPort") or ports[0].text("port")
            found.append(KubernetesService("" if name is None else name.scalar(), selector, first, view))
    return tuple(found)


def deployed_labels(views: Sequence[ManifestView]) -> tuple[dict[str, str], ...]:
    """Return the labels of the pods of each Deployment of a file."""
    deployments = [v for v in views if isinstance(v.node.value, dict) and v.text("kind") == "Deployment"]
    return tuple(
        {
            key: value.scalar()
            for holder in (view.get("metadata"), view.follow("spec", "template", "metadata"))
            if holder is not None
            for key, value in holder.pairs("labels").items()
        }
        for view in deployments
    )


def deployment_body(spec: ManifestView, around: Around) -> tuple[Values, PodParts]:
    """Read a Deployment: a service whose replicas run the container of its pod template."""
    spec.check(DEPLOYMENT)
    template = spec.get("template")
    if template is None:
        spec.refuse("needs a 'template'.")
        return {}, PodParts()
    parts = template_parts(template, around)
    main = parts.main
    if main is None:
        return {}, parts
    _check_restart(template, parts)
    services = [each for each in around.companions.services if each.selects(parts.labels)]
    for each in services:
        _check_service(each, around.metadata)
    port = _port(main, services)
    fixed = _use_own_port(parts, main, port) if port else 0
    ready = _ready(main, port)
    ready["within"] = spec.number("progressDeadlineSeconds", DEFAULT_PROGRESS_S, least=1)
    count = spec.number("replicas", 1, most=MAX_REPLICAS) or 1
    service: Values = {"replicas": str(count), "ready": ready, "update": {"surge": _surge(spec, count)}}
    service |= {"port": fixed} if fixed else {}
    service |= _notes(around.metadata)
    return body_of(parts) | {"kind": "service", "service": service}, parts


def stopped(spec: ManifestView) -> bool:
    """Return whether a Deployment has no replicas."""
    return spec.number("replicas", 1) == 0


def _check_restart(template: ManifestView, parts: PodParts) -> None:
    where = template.get("spec") or template
    if parts.restart not in {"", "Always"}:
        where.report.refuse(
            where.place_of("restartPolicy"),
            "A Deployment's 'restartPolicy' must be Always.",
            "Leave it out, or use a Job.",
            ErrorCode.INVALID_REQUEST,
        )


def _check_service(service: KubernetesService, metadata: ManifestView) -> None:
    view = service.view
    meta, spec = view.get("metadata"), view.get("spec")
    if meta is not None:
        meta.check(METADATA)
    if spec is None:
        return
    spec.check(SERVICE)
    ports = spec.each("ports")
    for number, port in enumerate(ports):
        port.check(SERVICE_PORT)
        if port.text("protocol", "TCP") != "TCP":
            port.refuse("must have the protocol TCP.", "The gateway carries HTTP.", ErrorCode.UNSUPPORTED)
        if number:
            port.warn(ManifestNotice.PORT_IGNORED, "is ignored: a service has one port, the first one.")
    kind = spec.get("type")
    if kind is not None and kind.scalar() == "ExternalName":
        kind.refuse("cannot be ExternalName.", "Leave the Service out.", ErrorCode.UNSUPPORTED)
    said = f"Service '{service.name[:80]}' is the address /s/PROJECT/{metadata.text('name')[:80]}/ of the gateway."
    view.report.warn(view.place_of("kind"), ManifestNotice.SERVICE_ADDRESS, said)


def _port(container: ManifestView, services: Sequence[KubernetesService]) -> int:
    """Return the port of the server: that of a Service, of the container, or of its probe; 0 if none is named."""
    named: dict[str, int] = {}
    for each in container.each("ports"):
        each.check(CONTAINER_PORT)
        number = each.number("containerPort", least=1, most=65535)
        if number is not None:
            named[each.text("name") or str(number)] = number
    wanted = next((each.port for each in services if each.port), "")
    if wanted and not wanted.isdecimal():
        if wanted not in named:
            container.refuse(f"has no port with the name '{wanted[:80]}', which a Service needs.", "Name its port.")
        return named.get(wanted, 0)
    if wanted:
        return int(wanted) if int(wanted) <= 65535 else 0
    if named:
        return next(iter(named.values()))
    for action in ("httpGet", "tcpSocket"):
        probed = container.follow("readinessProbe", action)
        if probed is not None and probed.text("port").isdecimal():
            return int(probed.text("port")[:5])
    container.warn(
        ManifestNotice.PORT_UNKNOWN, "names no port: its server must listen on the port in the variable PORT."
    )
    return 0


def _use_own_port(parts: PodParts, container: ManifestView, port: int) -> int:
    """Let each replica use its own port instead of the container's; return the port if the program does not name it."""
    before = (list(parts.command), parts.container.get("entrypoint"), dict(parts.env.values))
    parts.command = [_with_port(word, port) for word in parts.command]
    if parts.container.get("entrypoint"):
        parts.container["entrypoint"] = [_with_port(word, port) for word in parts.container["entrypoint"]]
    parts.env.values = {name: _with_port(value, port) for name, value in parts.env.values.items()}
    if before != (parts.command, parts.container.get("entrypoint"), parts.env.values):
        said = f"has the port {port}, which is replaced: replicas share the network of their node, each has its port."
        container.warn(ManifestNotice.PORT_REPLACED, said)
        return 0
    if any(PORT in word for word in (*parts.command, *parts.container.get("entrypoint", ()))):
        return 0
    said = (
        f"listens on the port {port} of its node, which one replica can have: "
        "set its port by an argument or a variable, for example '--port', '{port}'."
    )
    container.warn(ManifestNotice.PORT_FIXED, said)
    return port


def _with_port(text: str, port: int) -> str:
    """Replace a port that is a whole word, or follows ``=`` or ``:`` at its end."""
    return re.sub(rf"(^|[=:]){port}$", rf"\1{PORT}", text)


def _ready(container: ManifestView, port: int) -> Values:
    """Return the section ``ready`` of a service."""
    probe = container.get("readinessProbe")
    if probe is None:
        return {}
    probe.check(PROBE)
    body: Values = {
        "every": probe.number("periodSeconds", 10, least=1),
        "timeout": probe.number("timeoutSeconds", 1, least=1),
        "failures": probe.number("failureThreshold", 3, least=1, most=100),
    }
    if (get := probe.get("httpGet")) is not None:
        get.check(HTTP_GET)
        get.choice("scheme", ("HTTP",), "HTTP")
        path = get.text("path") or "/"
        body["http"] = path if path.startswith("/") else f"/{path}"
        _check_port(get, container, port)
    elif (tcp := probe.get("tcpSocket")) is not None:
        tcp.check(TCP_SOCKET)
        _check_port(tcp, container, port)
    elif (action := probe.get("exec")) is not None:
        action.check(EXEC_ACTION)
        body["command"] = [_with_port(word, port) if port else word for word in action.texts("command")]
        if not body["command"]:
            action.refuse("needs a 'command'.")
        if body["timeout"] > MAX_CHECK_S:
            probe.refuse(f"has a timeout above {MAX_CHECK_S:g} seconds.", "Lower 'timeoutSeconds'.")
    return body


def _check_port(action: ManifestView, container: ManifestView, port: int) -> None:
    """Refuse a probe of another port than the server's: only the port of the replica is known."""
    wanted = action.text("port")
    named = {each.text("name"): each.text("containerPort") for each in container.each("ports")}
    if port and named.get(wanted, wanted) != str(port):
        action.refuse(
            f"checks the port {wanted[:40]}; requests go to the port {port}.",
            "Check the same port, or use 'exec'.",
            ErrorCode.UNSUPPORTED,
        )


def _surge(spec: ManifestView, count: int) -> int:
    strategy = spec.get("strategy")
    if strategy is None:
        return _part(DEFAULT_ROLL, count, up=True)
    strategy.check(STRATEGY)
    kind = strategy.choice("type", ("RollingUpdate", "Recreate"), "RollingUpdate")
    if kind == "Recreate":
        if count > 1:
            strategy.warn(ManifestNotice.ONE_BY_ONE, "stops one replica at a time, not all.")
        return 0
    rolling = strategy.get("rollingUpdate")
    if rolling is None:
        return _part(DEFAULT_ROLL, count, up=True)
    rolling.check(ROLLING_UPDATE)
    surge, missing = (_amount(rolling, key, count) for key in ("maxSurge", "maxUnavailable"))
    if not surge and not missing:
        rolling.refuse("cannot be 0 for both maxSurge and maxUnavailable.", "Set one of them to 1.")
    return surge


def _amount(rolling: ManifestView, key: str, count: int) -> int:
    value = rolling.get(key)
    text = DEFAULT_ROLL if value is None else value.scalar()
    if value is not None and not (_PERCENT.fullmatch(text) or (text.isdecimal() and len(text) <= 4)):
        value.refuse("must be a number of replicas or a percentage.", "Write it like 1 or 25%.")
        return 1
    return _part(text, count, up=key == "maxSurge")


def _part(text: str, count: int, *, up: bool) -> int:
    """Return a number of replicas; percentages are rounded up for surges and down for missing replicas."""
    found = _PERCENT.fullmatch(text)
    if found is None:
        return min(int(text), MAX_REPLICAS)
    part = int(found[1]) * count / 100
    return min(math.ceil(part) if up else math.floor(part), MAX_REPLICAS)


def _notes(metadata: ManifestView) -> Values:
    """Return the fields that have no counterpart in a Deployment, from annotations."""
    notes = {key: value.scalar() for key, value in metadata.pairs("annotations").items()}
    found: Values = {}
    if REPLICAS_NOTE in notes:
        found["replicas"] = notes[REPLICAS_NOTE]
    if ACCESS_NOTE in notes:
        found["access"] = notes[ACCESS_NOTE]
    for key, name in ((MODEL_NOTE, "model"), (HOSTS_NOTE, "hosts")):
        if key in notes:
            found[name] = [word.strip() for word in notes[key].split(",") if word.strip()]
    return found
