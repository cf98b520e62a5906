"""Kinds and names of Kubernetes objects on the command line, and the workloads that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpupool.cli.transport.pool import PoolClient, open_pool, split_reference, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.kubernetes.kinds import BY_WORD, DEPLOYMENT, KIND_LABEL, KINDS, POD, ManifestKind

Json = dict[str, Any]

ALL = "all"
NODES = frozenset({"node", "nodes", "no"})
_VALUES = {"--dry-run": {"client": "--dry-run", "server": "--dry-run", "none": ""}}


class ObjectTarget(NamedTuple):
    """Objects of a kind: those with these names, or all when no name is given. ``kind`` None stands for nodes."""

    kind: ManifestKind | None
    names: tuple[str, ...] = ()


def normalize_flags(argv: list[str]) -> list[str]:
    """Convert kubectl's ``--flag=true``, ``--flag=false`` and ``-o=json`` to the notation of this program."""
    plain = []
    for word in argv:
        flag, equals, value = word.partition("=")
        if equals and flag in _VALUES and value in _VALUES[flag]:
            plain += [_VALUES[flag][value]] if _VALUES[flag][value] else []
        elif equals and flag.startswith("--") and value == "true":
            plain.append(flag)
        elif equals and flag.startswith("--") and value == "false":
            plain += [f"--no-{flag[2:]}"] if flag == "--wait" else []
        elif equals and len(flag) == 2 and flag[0] == "-":
            plain += [flag, value]
        else:
            plain.append(word)
    return plain


def is_kind(word: str) -> bool:
    """Return whether a word, or its part before a slash or comma, is a kind."""
    first = word.partition("/")[0].partition(",")[0].lower()
    return first in BY_WORD or first in NODES or first == ALL


def parse_targets(words: Sequence[str]) -> list[ObjectTarget]:
    """Return the objects in ``pods``, ``job train``, ``pod/a job/b`` and ``pods,jobs``. Raises ``GpupoolError``."""
    if any("/" in word for word in words):
        return [_slashed(word) for word in words]
    kinds = [kind for word in words[0].lower().split(",") for kind in _kinds(word)]
    return [ObjectTarget(kind, tuple(words[1:])) for kind in kinds]


def _slashed(word: str) -> ObjectTarget:
    kind, slash, name = word.partition("/")
    if not slash or not name:
        raise _unknown(word)
    return ObjectTarget(_kinds(kind.lower())[0], (name,))


def _kinds(word: str) -> list[ManifestKind | None]:
    if word == ALL:
        return list(KINDS)
    if word in NODES:
        return [None]
    if word not in BY_WORD:
        raise _unknown(word)
    return [BY_WORD[word]]


def _unknown(word: str) -> GpupoolError:
    known = ", ".join(kind.plural for kind in KINDS)
    return GpupoolError(
        ErrorCode.INVALID_REQUEST, f"Unknown kind of object '{word[:80]}'.", f"Known kinds: {known} and nodes."
    )


class ObjectScope(NamedTuple):
    """The owners and labels of objects: of one project, of all users, or else the caller's own."""

    project: str | None = None
    everybody: bool = False
    labels: tuple[str, ...] = ()

    def query(self, pool: PoolClient) -> Json:
        """Return the query for workloads."""
        own = not self.everybody and self.project is None
        user = pool.get("whoami")["user"] if own else None
        return {"all": True, "project": self.project, "user": user}


def find(pool: PoolClient, kind: ManifestKind, scope: ObjectScope, names: Sequence[str] = ()) -> list[Json]:
    """Return workloads that were made from objects of a kind, oldest first, or those with the given names."""
    query = scope.query(pool)
    labels = [f"{KIND_LABEL}={kind.name}", *scope.labels]
    if not names:
        return list(reversed(pool.workloads({**query, "label": labels})))
    return [_one(pool, kind, name, {**query, "label": labels}) for name in names]


def _one(pool: PoolClient, kind: ManifestKind, name: str, query: Json) -> Json:
    found = pool.workloads({**query, "name": name}, 1)
    if not found:
        raise unknown_object_error(kind, name)
    return found[0]


def unknown_object_error(kind: ManifestKind, name: str) -> GpupoolError:
    """Return the error for an object that does not exist."""
    return GpupoolError(
        ErrorCode.UNKNOWN_WORKLOAD,
        f"There is no {kind.resource} '{name[:80]}'.",
        f"See 'gpupool get {kind.plural}'; -A lists those of all users.",
    )


def find_deployments(pool: PoolClient, scope: ObjectScope, names: Sequence[str] = ()) -> list[Json]:
    """Return the services in a scope as Deployments, or those with the given names."""
    query, found = scope.query(pool), pool.get("services")["services"]
    rows = [
        row
        for row in found
        if query["user"] in {None, row["user"]}
        and query["project"] in {None, row["project"]}
        and set(scope.labels) <= {f"{k}={v}" for k, v in ((row["definition"] or {}).get("labels") or {}).items()}
    ]
    if not names:
        return rows
    for name in names:
        if not any(row["name"] == name for row in rows):
            raise unknown_object_error(DEPLOYMENT, name)
    return [row for name in names for row in rows if row["name"] == name]


def find_pods(pool: PoolClient, scope: ObjectScope, names: Sequence[str] = ()) -> list[Json]:
    """Return workloads in detail with the replicas that are wanted as pods: all, or those with the given names."""
    if names:
        return [_pod(pool, scope, name) for name in names]
    found = [workload for kind in KINDS for workload in find(pool, kind, scope)]
    return [detail(pool, workload) for workload in sorted(found, key=lambda workload: workload["created_at"])]


def _pod(pool: PoolClient, scope: ObjectScope, name: str) -> Json:
    """Return the workload of a pod. The pod's name starts with the workload's name."""
    query = {**scope.query(pool), "label": list(scope.labels)}
    for candidate in _prefixes(name):
        for workload in pool.workloads({**query, "name": candidate}, 1):
            whole = detail(pool, workload)
            replicas = [replica for replica in whole["replicas"] if replica["member"] == name]
            if replicas:
                return {**whole, "replicas": replicas}
    raise unknown_object_error(POD, name)


def _prefixes(name: str) -> Iterator[str]:
    """Yield ``a-worker-0``, ``a-worker``, ``a``: a pod's name may end with a role and a number."""
    for _ in range(8):
        yield name
        name, dash, _last = name.rpartition("-")
        if not dash or not name:
            return


def detail(pool: PoolClient, workload: Json) -> Json:
    """Return a workload with its replicas."""
    found: Json = pool.get(workload_path(workload["id"]))
    return found


def workload_to_describe(pool: PoolClient, words: Sequence[str]) -> str:
    """Return the workload in ``pod/eval`` or ``tfjob mnist``; empty if the words mean something else.

    ``job NAME`` is any workload of that name if no Job has it.
    """
    text = words[0] if len(words) == 1 else "/".join(words)
    kind, slash, _ = text.partition("/")
    if not slash or kind.lower() not in BY_WORD:
        return ""
    try:
        return resolve_object(pool, text).partition("/")[0]
    except GpupoolError as error:
        if kind == "job" and error.code is ErrorCode.UNKNOWN_WORKLOAD and len(words) > 1:
            return ""
        raise


def resolve_object(pool: PoolClient, text: str) -> str:
    """Return ``job/train`` and ``pod/mnist-worker-0`` as ``ID`` or ``ID/INDEX``; other text unchanged."""
    kind_word, slash, name = text.partition("/")
    kind = BY_WORD.get(kind_word.lower())
    if not slash or kind is None or name.isdecimal():
        return text
    everybody = ObjectScope(everybody=True)
    for scope in (ObjectScope(), everybody):
        try:
            if kind is DEPLOYMENT:
                return _newest_replica(find_deployments(pool, scope, [name])[0])
            if kind is POD:
                whole = _pod(pool, scope, name)
                index = whole["replicas"][0]["index"]
                return f"{whole['id']}/{index}" if whole["completions"] > 1 else str(whole["id"])
            return str(find(pool, kind, scope, [name])[0]["id"])
        except GpupoolError as error:
            if error.code is not ErrorCode.UNKNOWN_WORKLOAD or scope is everybody:
                raise
    raise unknown_object_error(kind, name)


def _newest_replica(service: Json) -> str:
    if not service["replicas"]:
        raise GpupoolError(
            ErrorCode.UNKNOWN_WORKLOAD,
            f"The service {service['name']} has no replica now.",
            f"See 'gpupool service describe {service['name']}'.",
        )
    return str(service["replicas"][-1]["workload"])


def resolve_reference(name: str) -> tuple[str, int | None]:
    """Return the workload and the replica in ``NAME`` or ``NAME/3``, or of the object in ``job/pi`` or ``pod/pi-2``."""
    return split_reference(resolve_object(open_pool(), name) if "/" in name else name)
