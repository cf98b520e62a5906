"""What people type for Kubernetes' objects: kinds, names, and which workloads they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.cli.pool import Pool, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.kubernetes.words import BY_WORD, KIND_LABEL, KINDS, POD, Kind

Json = dict[str, Any]

ALL = "all"
NODES = frozenset({"node", "nodes", "no"})
_VALUES = {"--dry-run": {"client": "--dry-run", "server": "--dry-run", "none": ""}}


@dataclass(frozen=True, slots=True)
class Target:
    """Objects of a kind: those that are named, or all where none is. ``kind`` None stands for nodes."""

    kind: Kind | None
    names: tuple[str, ...] = ()


def plain_flags(argv: list[str]) -> list[str]:
    """Kubectl's ``--flag=true``, ``--flag=false`` and ``-o=json`` as this program writes them."""
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
    """Whether a word, or what is before its slash or comma, is that of a kind."""
    first = word.partition("/")[0].partition(",")[0].lower()
    return first in BY_WORD or first in NODES or first == ALL


def targets_of(words: Sequence[str]) -> list[Target]:
    """The objects in ``pods``, ``job train``, ``pod/a job/b`` and ``pods,jobs``. Raises ``GpupoolError``."""
    if any("/" in word for word in words):
        return [_slashed(word) for word in words]
    kinds = [kind for word in words[0].lower().split(",") for kind in _kinds(word)]
    return [Target(kind, tuple(words[1:])) for kind in kinds]


def _slashed(word: str) -> Target:
    kind, slash, name = word.partition("/")
    if not slash or not name:
        raise _unknown(word)
    return Target(_kinds(kind.lower())[0], (name,))


def _kinds(word: str) -> list[Kind | None]:
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
        ErrorCode.INVALID_REQUEST, f"There are no objects called '{word[:80]}'.", f"There are {known} and nodes."
    )


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose objects: of one project, of everybody, else one's own; with these labels."""

    project: str | None = None
    everybody: bool = False
    labels: tuple[str, ...] = ()

    def query(self, pool: Pool) -> Json:
        """The query for workloads."""
        own = not self.everybody and self.project is None
        user = pool.get("whoami")["user"] if own else None
        return {"all": True, "project": self.project, "user": user}


def find(pool: Pool, kind: Kind, scope: Scope, names: Sequence[str] = ()) -> list[Json]:
    """Workloads that were made from objects of a kind, oldest first; those with one of some names."""
    query = scope.query(pool)
    labels = [f"{KIND_LABEL}={kind.name}", *scope.labels]
    if not names:
        return list(reversed(pool.workloads({**query, "label": labels})))
    return [_one(pool, kind, name, {**query, "label": labels}) for name in names]


def _one(pool: Pool, kind: Kind, name: str, query: Json) -> Json:
    found = pool.workloads({**query, "name": name}, 1)
    if not found:
        raise missing(kind, name)
    return found[0]


def missing(kind: Kind, name: str) -> GpupoolError:
    """There is no such object."""
    return GpupoolError(
        ErrorCode.UNKNOWN_WORKLOAD,
        f"There is no {kind.resource} '{name[:80]}'.",
        f"See 'gpupool get {kind.plural}'; -A has everybody's.",
    )


def find_pods(pool: Pool, scope: Scope, names: Sequence[str] = ()) -> list[Json]:
    """Workloads in detail, with the replicas that are asked for as pods: all, or those of some names."""
    if names:
        return [_pod(pool, scope, name) for name in names]
    found = [workload for kind in KINDS for workload in find(pool, kind, scope)]
    return [detail(pool, workload) for workload in sorted(found, key=lambda workload: workload["created_at"])]


def _pod(pool: Pool, scope: Scope, name: str) -> Json:
    """The workload of a pod's name: it begins with the workload's own name."""
    query = {**scope.query(pool), "label": list(scope.labels)}
    for candidate in _prefixes(name):
        for workload in pool.workloads({**query, "name": candidate}, 1):
            whole = detail(pool, workload)
            replicas = [replica for replica in whole["replicas"] if replica["member"] == name]
            if replicas:
                return {**whole, "replicas": replicas}
    raise missing(POD, name)


def _prefixes(name: str) -> Iterator[str]:
    """``a-worker-0``, ``a-worker``, ``a``: a name may end with a role and a number."""
    for _ in range(8):
        yield name
        name, dash, _last = name.rpartition("-")
        if not dash or not name:
            return


def detail(pool: Pool, workload: Json) -> Json:
    """A workload with its replicas."""
    found: Json = pool.get(workload_path(workload["id"]))
    return found


def described(pool: Pool, words: Sequence[str]) -> str:
    """The workload in ``pod/eval`` or ``tfjob mnist``; empty where the words mean something else.

    ``job NAME`` is any workload of that name, where no Job has it.
    """
    text = words[0] if len(words) == 1 else "/".join(words)
    kind, slash, _ = text.partition("/")
    if not slash or kind.lower() not in BY_WORD:
        return ""
    try:
        return resolve(pool, text).partition("/")[0]
    except GpupoolError as error:
        if kind == "job" and error.code is ErrorCode.UNKNOWN_WORKLOAD and len(words) > 1:
            return ""
        raise


def resolve(pool: Pool, text: str) -> str:
    """``job/train`` and ``pod/mnist-worker-0`` as ``ID`` or ``ID/INDEX``; anything else as it is."""
    kind_word, slash, name = text.partition("/")
    kind = BY_WORD.get(kind_word.lower())
    if not slash or kind is None or name.isdecimal():
        return text
    everybody = Scope(everybody=True)
    for scope in (Scope(), everybody):
        try:
            if kind is POD:
                whole = _pod(pool, scope, name)
                index = whole["replicas"][0]["index"]
                return f"{whole['id']}/{index}" if whole["completions"] > 1 else str(whole["id"])
            return str(find(pool, kind, scope, [name])[0]["id"])
        except GpupoolError as error:
            if error.code is not ErrorCode.UNKNOWN_WORKLOAD or scope is everybody:
                raise
    raise missing(kind, name)
