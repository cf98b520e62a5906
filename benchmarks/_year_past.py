"""Rows of ended work: a workload, a replica, a lease with its shares and four events for each lease."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import _year_names as names
from _year_names import GPUS_PER_NODE, NODES
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Department, Project, Role, User
from gpupool.domain.work.workload import Limits, Program, Workload, WorkloadKind
from gpupool.store.pool import pool_mapping
from gpupool.store.schema import tables as t
from gpupool.store.work import mapping

if TYPE_CHECKING:
    from _year import Book, Floats, Ints, Lanes, Leases

Table = tuple[str, tuple[str, ...], Iterator[tuple[Any, ...]]]
ENDS = (("succeeded", "EXITED", 0), ("failed", "EXITED", 1), ("stopped", "STOPPED_BY_USER", None))
EVENTS = ("id", "at", "actor", "reason", "message", "workload", "replica_index", "target")
STARTS_IN_S = 0.4


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row of the mapping in the form of the database driver: documents as JSON."""
    return tuple(json.dumps(value) if isinstance(value, dict | list) else value for value in row.values())


def write_standing(book: Book) -> None:
    """Write projects in departments, and users."""
    projects = [
        Project(
            names.project(i),
            quota_permille=12_000,
            department=f"department-{i % names.DEPARTMENTS}",
            weight=1.0 + i % 3,
            idle_timeout_s=4 * 3600.0 if i % 4 == 0 else None,
        )
        for i in range(names.PROJECTS)
    ]
    book.put_dicts("projects", [pool_mapping.project_row(project) for project in projects])
    departments = [Department(f"department-{i}", quota_permille=100_000) for i in range(names.DEPARTMENTS)]
    columns = [column.name for column in t.departments.columns]
    book.put("departments", columns, ([getattr(one, name) for name in columns] for one in departments))
    roles = (Role.ADMIN, Role.MANAGER, *[Role.MEMBER] * 8)
    users = [User(names.user(i), roles[i] if i < len(roles) else Role.MEMBER) for i in range(names.USERS)]
    book.put_dicts("users", [pool_mapping.user_row(user) for user in users])
    nodes = names.nodes()
    book.put_dicts("nodes", [pool_mapping.node_row(node) for node in nodes])
    gpus = [gpu for node in nodes for gpu in node.report.gpus]
    book.put("gpu_models", ("gpu_uuid", "model", "memory_mib"), ((g.uuid, g.model, g.memory_mib) for g in gpus))


def request(total: int, permille: int) -> Workload:
    """Return the request of a lease of this size; its other fields are overwritten."""
    count = max(1, total // permille)
    kind = WorkloadKind.TRAINING if permille == 1000 else WorkloadKind.INTERACTIVE
    program = Program(("python3", "train.py", "--epochs", "90"), {"PATH": "/usr/bin:/bin"}, "/home/user")
    return Workload(
        WorkloadId("w0000000000"), "", kind, "", "", program, GpuRequest(count, permille), 0.0, limits=Limits()
    )


def past_workloads(ids: list[str], places: Lanes, leases: Leases, ends: Ints) -> Table:
    """Yield rows of ``workloads``."""
    columns = tuple(mapping.workload_row(request(1000, 1000)))
    templates = {
        lane: mapping.workload_row(request(int(places.total[lane]), int(places.permille[lane])))
        for lane in range(len(places.node))
    }
    specs = {lane: json.dumps(row["spec"], separators=(",", ":")) for lane, row in templates.items()}
    kinds = ("training", "run", "interactive", "lease")

    def rows() -> Iterator[tuple[Any, ...]]:
        for number, lane, granted, released, waited, user, project, end in _each(leases, ends):
            kind = kinds[number % 2 + (2 if places.permille[lane] < 1000 else 0)]
            row = {
                **templates[lane],
                "id": ids[number],
                "name": f"job-{number}",
                "kind": kind,
                "project": names.project(project),
                "user_name": names.user(user),
                "created_at": granted - waited,
                "started_at": granted + STARTS_IN_S,
                "finished_at": released,
                "state": ENDS[end][0],
                "stop_reason": "STOPPED_BY_USER" if end == 2 else None,
                "spec": specs[lane],
                "version": 4,
            }
            yield tuple(row[column] for column in columns)

    return "workloads", columns, rows()


def past_replicas(ids: list[str], places: Lanes, leases: Leases, ends: Ints) -> Table:
    """Yield rows of ``replicas``."""
    columns = tuple(column.name for column in t.replicas.columns)[:23]  # later columns have defaults

    def rows() -> Iterator[tuple[Any, ...]]:
        for number, lane, granted, released, waited, _, _, end in _each(leases, ends):
            state, reason, status = ENDS[end]
            yield (
                *(ids[number], 0, state, 1, names.node(int(places.node[lane])), number + 1, 4242, status, reason),
                *("", None, end % 2, 0, granted - waited, 0.0, granted + STARTS_IN_S, released, released, 0, None, 4),
                *("whole" if places.permille[lane] == 1000 else "share", ""),
            )

    return "replicas", columns, rows()


def past_leases(ids: list[str], places: Lanes, leases: Leases) -> Table:
    """Yield rows of ``leases``."""
    columns = tuple(column.name for column in t.leases.columns)[:15]  # later columns have defaults

    def rows() -> Iterator[tuple[Any, ...]]:
        for number, lane, granted, released, _, user, project, _ in _each(leases, leases.lane):
            yield (
                *(number + 1, ids[number], 0, 1, names.project(project), names.user(user)),
                *(names.node(int(places.node[lane])), 0.0, 0, int(places.total[lane]), granted, released),
                *("", "guarantee", None),
            )

    return "leases", columns, rows()


def past_shares(places: Lanes, leases: Leases) -> Table:
    """Yield rows of ``lease_shares``."""
    columns = tuple(column.name for column in t.lease_shares.columns)
    parts = {
        lane: [
            names.share(int(places.node[lane]), int(places.first[lane]) + offset, int(places.permille[lane]))
            for offset in range(int(places.count[lane]))
        ]
        for lane in range(len(places.node))
    }

    def rows() -> Iterator[tuple[Any, ...]]:
        for number, lane, _, released, *_ in _each(leases, leases.lane):
            for position, share in enumerate(parts[lane]):
                yield (
                    *(number + 1, position, share.gpu_uuid, share.gpu_index, share.permille, share.memory_mib),
                    released,
                )

    return "lease_shares", columns, rows()


def past_events(ids: list[str], leases: Leases, ends: Ints) -> Table:
    """Yield rows of ``events``: submitted, granted, started, ended, about in the order in which a pool writes them."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for number, _, granted, released, waited, user, _, end in _each(leases, ends):
            common = (ids[number], 0, "")
            key = 4 * number
            yield key + 1, granted - waited, names.user(user), "SUBMITTED", "submitted", *common
            yield key + 2, granted, "pool", "GRANTED", "granted", *common
            yield key + 3, granted + STARTS_IN_S, "pool", "STARTED", "started", *common
            yield key + 4, released, "pool", ENDS[end][1], "ended", *common

    return "events", EVENTS, rows()


def _each(leases: Leases, ends: Ints) -> Iterator[tuple[Any, ...]]:
    columns = (leases.lane, leases.granted, leases.released, leases.waited, leases.user, leases.project, ends)
    return zip(range(len(leases)), *(column.tolist() for column in columns), strict=True)


def put_gpu_use(book: Book, busy: Floats, steps: Ints, step: int) -> None:
    """Yield rows of ``gpu_use``: ``busy`` seconds of each GPU [G] in each step [T], which begin at ``steps``."""
    columns = tuple(column.name for column in book.columns("gpu_use"))
    for number in range(NODES * GPUS_PER_NODE):
        node_number, index = divmod(number, GPUS_PER_NODE)
        uuid, name = names.gpu(node_number, index), names.node(node_number)
        memory = names.CARDS[node_number].memory_mib
        book.put(
            "gpu_use",
            columns,
            (
                _gpu_row(uuid, name, step, at, round(seconds, 1), memory)
                for at, seconds in zip(steps.tolist(), busy[number].tolist(), strict=True)
            ),
        )


def _gpu_row(uuid: str, name: str, step: int, at: int, busy: float, memory: int) -> tuple[Any, ...]:
    part = busy / step
    return (
        *(uuid, step, at, name, step, busy, min(100.0, 130 * part), round(memory * 0.7 * part, 1), int(memory * part)),
        *(step * (60 + 240 * part), 35 + 40 * part, 1400.0),
    )
