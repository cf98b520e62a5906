"""Values that the store's tests write: short ones by hand, strange ones by hypothesis."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st

from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import ID_ALPHABET, Epoch, WorkloadId
from gpupool.domain.nodes.gpu import ForeignProcess, Gpu, GpuHealth, GpuRequest, GpuShare, Node, NodeReport, NodeState
from gpupool.domain.nodes.sharing import ComputePolicy, Sharing
from gpupool.domain.people.access import Project, Role, Token, User
from gpupool.domain.work import workload as workload_domain
from gpupool.domain.work.gang import Gang
from gpupool.domain.work.program.supervision import Stdio
from gpupool.domain.work.workload import (
    Dependency,
    Framework,
    GpuLease,
    Limits,
    OnMemberEnd,
    Program,
    Replica,
    ReplicaState,
    RestartPolicy,
    Retry,
    SuccessPolicy,
    Workload,
    WorkloadKind,
    WorkloadState,
)

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def wid(number: int) -> WorkloadId:
    return WorkloadId(f"w{number:010d}")


def workload(key: WorkloadId, **changes: Any) -> Workload:
    plain: dict[str, Any] = {
        "id": key,
        "name": f"n-{key}",
        "kind": WorkloadKind.TRAINING,
        "project": "default",
        "user": "ada",
        "program": Program(argv=("python", "train.py"), env={"A": "1"}, cwd="/home/ada"),
        "gpus": GpuRequest(permille=500),
        "created_at": 1000.0,
    }
    return Workload(**{**plain, **changes})


def lease(epoch: int, key: WorkloadId, *shares: GpuShare, **changes: Any) -> GpuLease:
    plain: dict[str, Any] = {
        "epoch": Epoch(epoch),
        "workload": key,
        "index": 0,
        "attempt": 1,
        "project": "default",
        "user": "ada",
        "node": "here",
        "shares": shares,
        "cpus": 2.0,
        "memory_mib": 4096,
        "granted_at": 1000.0 + epoch,
    }
    return GpuLease(**{**plain, **changes})


def share(gpu: str, permille: int) -> GpuShare:
    return GpuShare(gpu, 0, permille, permille * 16)


def event(message: str = "x", **changes: Any) -> Event:
    return Event(**{"at": 1.0, "actor": "ada", "reason": Reason.SUBMITTED, "message": message, **changes})


def token(number: int, **changes: Any) -> Token:
    plain: dict[str, Any] = {
        "id": f"t{number}",
        "user": "ada",
        "secret_sha256": f"{number:064x}",
        "role": Role.MEMBER,
        "created_at": float(number),
        "expires_at": number + 100.0,
    }
    return Token(**{**plain, **changes})


# --- all values that the types allow --------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)
SENTENCES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
BYTES_OF_A_SHELL = st.binary(max_size=20).map(lambda b: b.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
TIMES = st.floats(0, 4e9)
MAYBE_TIMES = st.none() | TIMES
COUNTS = st.integers(0, 2**31 - 1)
IDS = st.text(ID_ALPHABET, min_size=10, max_size=10).map(lambda tail: WorkloadId("w" + tail))
STRINGS = st.dictionaries(BYTES_OF_A_SHELL, BYTES_OF_A_SHELL, max_size=3)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | SENTENCES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SENTENCES, inner, max_size=3),
    max_leaves=5,
)


def tuples_of(values: st.SearchStrategy[T], most: int = 3) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(values, max_size=most).map(tuple)


PROGRAMS = st.builds(
    Program,
    argv=tuples_of(BYTES_OF_A_SHELL),
    env=STRINGS,
    cwd=BYTES_OF_A_SHELL,
    stdio=st.sampled_from(Stdio),
    client_bound=st.booleans(),
    linger_s=st.none() | st.floats(1, 1e6),
)
REQUESTS = st.builds(
    GpuRequest,
    count=COUNTS,
    permille=st.integers(1, 1000),
    memory_mib=st.none() | COUNTS,
    models=tuples_of(SENTENCES),
    labels=tuples_of(st.tuples(NAMES, SENTENCES)),
    sharing=st.none() | st.sampled_from(Sharing),
)
ROLES = st.builds(
    workload_domain.GangRole,
    name=NAMES,
    replicas=COUNTS,
    argv=st.none() | tuples_of(BYTES_OF_A_SHELL),
    env=STRINGS,
    gpus=st.none() | REQUESTS,
    cpus=MAYBE_TIMES,
    memory_mib=st.none() | COUNTS,
    restart=st.none() | st.sampled_from(RestartPolicy),
)
LIMITS = st.builds(Limits, wait_s=MAYBE_TIMES, max_time_s=MAYBE_TIMES, cpus=MAYBE_TIMES, memory_mib=st.none() | COUNTS)
RETRIES = st.builds(Retry, policy=st.sampled_from(RestartPolicy), backoff_limit=COUNTS)
GANGS = st.builds(Gang, least=COUNTS, most=COUNTS, within=NAMES, strict=st.booleans())
WORKLOADS = st.builds(
    Workload,
    roles=tuples_of(ROLES),
    gang=GANGS,
    framework=st.sampled_from(Framework),
    on_member_end=st.sampled_from(OnMemberEnd),
    success_policy=st.sampled_from(SuccessPolicy),
    processes=COUNTS,
    id=IDS,
    name=NAMES,
    kind=st.sampled_from(WorkloadKind),
    project=NAMES,
    user=NAMES,
    program=PROGRAMS,
    gpus=REQUESTS,
    created_at=TIMES,
    uid=st.none() | COUNTS,
    compute=st.sampled_from(ComputePolicy),
    priority=st.integers(-(2**31), 2**31 - 1),
    preemptible=st.booleans(),
    limits=LIMITS,
    retry=RETRIES,
    completions=COUNTS,
    parallelism=COUNTS,
    parameters=tuples_of(st.dictionaries(SENTENCES, JSON_VALUES, max_size=3)),
    after=tuples_of(st.builds(Dependency, IDS, st.booleans())),
    windows=tuples_of(st.sampled_from(["nights", "sat,sun"])),
    on=st.none() | IDS,
    on_index=COUNTS,
    labels=st.dictionaries(NAMES, SENTENCES, max_size=3),
    request_id=st.none() | SENTENCES,
    state=st.sampled_from(WorkloadState),
    suspended=st.booleans(),
    stop_reason=st.none() | st.sampled_from(Reason),
    expires_at=MAYBE_TIMES,
    started_at=MAYBE_TIMES,
    finished_at=MAYBE_TIMES,
    deleted_at=MAYBE_TIMES,
    version=st.just(0),
)
REPLICAS = st.builds(
    Replica,
    workload=IDS,
    index=COUNTS,
    state=st.sampled_from(ReplicaState),
    attempt=COUNTS,
    node=st.none() | NAMES,
    lease=st.none() | st.integers(1, 2**62).map(Epoch),
    pid=st.none() | COUNTS,
    exit_status=st.none() | st.integers(0, 255),
    reason=st.sampled_from(Reason),
    message=SENTENCES,
    next_reason=st.none() | st.sampled_from(Reason),
    failures=COUNTS,
    interruptions=COUNTS,
    queued_at=TIMES,
    not_before=TIMES,
    started_at=MAYBE_TIMES,
    finished_at=MAYBE_TIMES,
    last_active_at=MAYBE_TIMES,
    idle_warned=st.booleans(),
    notes=tuples_of(SENTENCES),
    sharing=NAMES,
    guarantee=SENTENCES,
    version=st.just(0),
)
SHARES = st.builds(GpuShare, SENTENCES, COUNTS, st.integers(1, 1000), st.integers(0, 2**40))
LEASES = st.builds(
    GpuLease,
    epoch=st.integers(1, 2**62).map(Epoch),
    workload=IDS,
    index=COUNTS,
    attempt=COUNTS,
    project=NAMES,
    user=NAMES,
    node=NAMES,
    shares=tuples_of(SHARES, 8),
    cpus=TIMES,
    memory_mib=st.integers(0, 2**40),
    granted_at=TIMES,
    released_at=TIMES,
    sharing=st.sampled_from(["", *Sharing]).map(str),
    compute=st.sampled_from(ComputePolicy),
)
EVENTS = st.builds(
    Event,
    at=TIMES,
    actor=SENTENCES,
    reason=st.sampled_from(Reason),
    message=SENTENCES,
    workload=st.none() | IDS,
    index=st.none() | COUNTS,
    target=SENTENCES,
)
PROJECTS = st.builds(
    Project,
    name=NAMES,
    quota_permille=st.none() | COUNTS,
    over_quota=st.booleans(),
    limit_permille=st.none() | COUNTS,
    user_limit_permille=st.none() | COUNTS,
    members=tuples_of(NAMES),
    max_time_s=MAYBE_TIMES,
    idle_timeout_s=MAYBE_TIMES,
    note=SENTENCES,
    compute_default=st.none() | st.sampled_from(ComputePolicy),
    compute_allowed=tuples_of(st.sampled_from(ComputePolicy)),
    sharing_default=st.none() | st.sampled_from(Sharing),
    sharing_allowed=tuples_of(st.sampled_from(Sharing)),
)
USERS = st.builds(
    User, NAMES, st.sampled_from(Role), st.none() | st.integers(0, 2**32), st.none() | COUNTS, st.booleans()
)
TOKENS = st.builds(
    Token,
    id=NAMES,
    user=NAMES,
    secret_sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    role=st.sampled_from(Role),
    created_at=TIMES,
    expires_at=TIMES,
    revoked_at=MAYBE_TIMES,
    last_used_at=MAYBE_TIMES,
    note=SENTENCES,
)
GPUS = st.builds(
    Gpu,
    uuid=SENTENCES,
    index=COUNTS,
    model=SENTENCES,
    memory_mib=COUNTS,
    emulated=st.booleans(),
    health=st.sampled_from(GpuHealth),
    links=st.dictionaries(st.integers(0, 15), NAMES, max_size=3),
    mig_profile=SENTENCES,
    parent_uuid=SENTENCES,
    foreign=tuples_of(st.builds(ForeignProcess, COUNTS, SENTENCES, SENTENCES, COUNTS)),
)
NODES = st.builds(
    Node,
    report=st.builds(
        NodeReport,
        name=NAMES,
        cpus=TIMES,
        memory_mib=COUNTS,
        gpus=tuples_of(GPUS),
        emulated=st.booleans(),
        boot_id=SENTENCES,
        agent_version=SENTENCES,
        labels=st.dictionaries(SENTENCES, SENTENCES, max_size=2),
        warnings=tuples_of(SENTENCES),
        sharing=tuples_of(NAMES),
    ),
    state=st.sampled_from(NodeState),
    cordon_reason=SENTENCES,
    sharing=st.dictionaries(SENTENCES, st.sampled_from(Sharing), max_size=2),
    cordoned_gpus=st.dictionaries(SENTENCES, SENTENCES, max_size=2),
)
