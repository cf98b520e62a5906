"""``get`` and ``delete`` as in kubectl: tables, objects and changes; deletion of workloads and applied objects."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.errors import report
from gpupool.cli.kubernetes.names import (
    ObjectScope,
    ObjectTarget,
    detail,
    find,
    find_deployments,
    find_pods,
    is_kind,
    parse_targets,
)
from gpupool.cli.output import out_style, show, show_json, write_out
from gpupool.cli.render import kubernetes as render
from gpupool.cli.transport.pool import PoolClient, quote_segment, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.states import WorkloadState
from gpupool.specs.kubernetes import objects
from gpupool.specs.kubernetes.kinds import BY_NAME, DEPLOYMENT, POD
from gpupool.specs.kubernetes.manifests import named_objects

Json = dict[str, Any]


class ObjectListing:
    """One ``get``: the objects and the output format."""

    def __init__(self, pool: PoolClient, scope: ObjectScope, output: str, *, header: bool) -> None:
        self._pool = pool
        self._scope = scope
        self._output = output
        self._header = header

    def show(self, targets: list[ObjectTarget]) -> None:
        """Show all objects once."""
        if self._output in {"", "wide"}:
            self._show_tables(targets)
            return
        found = [one for target in targets for one in self._objects(target)]
        if self._output == "name":
            show(f"{_resource(one)}/{one['metadata']['name']}" for one in found)
            return
        single = len(targets) == 1 and len(targets[0].names) == 1
        write(found[0] if single else objects.list_object(found), self._output)

    def watch(self, targets: list[ObjectTarget]) -> None:
        """Show the tables, then each row that changes, until Ctrl-C."""
        seen: set[tuple[str, ...]] = set()
        headers_of: tuple[str, ...] | None = None
        while True:
            for target in targets:
                headers, rows = self._rows(target, prefix=len(targets) > 1)
                fresh = [row for row in rows if _stable_cells(headers, row) not in seen]
                if fresh or headers_of is None:
                    self._print(headers, fresh, header=self._header and tuple(headers) != headers_of)
                    headers_of = tuple(headers)
                seen |= {_stable_cells(headers, row) for row in rows}
            time.sleep(1)

    def _show_tables(self, targets: list[ObjectTarget]) -> None:
        several = len(targets) > 1
        shown = 0
        for target in targets:
            headers, rows = self._rows(target, prefix=several)
            if not rows:
                continue
            if shown:
                show([""])
            self._print(headers, rows, header=self._header)
            shown += 1
        if not shown:
            where = f"in project {self._scope.project}" if self._scope.project else "of yours"
            print(f"No objects{'' if self._scope.everybody else ' ' + where} were found.", file=sys.stderr)

    def _print(self, headers: list[str], rows: list[tuple[str, ...]], *, header: bool) -> None:
        show(render.lines(headers, rows, out_style(), header=header))

    def _rows(self, target: ObjectTarget, *, prefix: bool) -> tuple[list[str], list[tuple[str, ...]]]:

        wide = self._output == "wide"
        if target.kind is None:
            headers, rows = render.node_rows(self._nodes(target), wide=wide)
            return headers, [(f"node/{row[0]}", *row[1:]) if prefix else row for row in rows]
        if target.kind is DEPLOYMENT:
            return self._deployment_rows(target, prefix=prefix)
        workloads = self._workloads(target)
        headers, rows = render.rows_of(target.kind, workloads, time.time(), wide=wide)
        if prefix:
            rows = [(f"{target.kind.resource}/{row[0]}", *row[1:]) for row in rows]
        if self._scope.everybody:
            owners = [owner for w in workloads for owner in [(w["project"], w["user"])] * _row_count(target, w)]
            return ["NAMESPACE", *headers, "USER"], [
                (owner[0], *row, owner[1]) for owner, row in zip(owners, rows, strict=True)
            ]
        return headers, rows

    def _deployment_rows(self, target: ObjectTarget, *, prefix: bool) -> tuple[list[str], list[tuple[str, ...]]]:
        services = find_deployments(self._pool, self._scope, target.names)
        headers, rows = render.deployment_rows(services, time.time(), wide=self._output == "wide")
        if prefix:
            rows = [(f"{DEPLOYMENT.resource}/{row[0]}", *row[1:]) for row in rows]
        if not self._scope.everybody:
            return headers, rows
        owned = zip(services, rows, strict=True)
        return ["NAMESPACE", *headers, "USER"], [(each["project"], *row, each["user"]) for each, row in owned]

    def _workloads(self, target: ObjectTarget) -> list[Json]:

        if target.kind is POD:
            return find_pods(self._pool, self._scope, target.names)
        return [] if target.kind is None else find(self._pool, target.kind, self._scope, target.names)

    def _nodes(self, target: ObjectTarget) -> list[Json]:
        found = self._pool.get("nodes")["nodes"]
        if not target.names:
            return list(found)

        return [self._pool.get(f"nodes/{quote_segment(name)}") for name in target.names]

    def _objects(self, target: ObjectTarget) -> list[Json]:

        if target.kind is None:
            return [objects.node_object(node) for node in self._nodes(target)]
        if target.kind is DEPLOYMENT:
            found = find_deployments(self._pool, self._scope, target.names)
            return [objects.deployment_object(service) for service in found]
        now = time.time()
        workloads = self._workloads(target)
        if target.kind is POD:
            return [objects.pod_object(w, replica, now) for w in workloads for replica in w["replicas"]]
        return [objects.object_of(detail(self._pool, workload), now) for workload in workloads]


def _row_count(target: ObjectTarget, workload: Json) -> int:
    """Return the number of rows of a workload."""
    return len(workload["replicas"]) if target.kind is POD else 1


def _stable_cells(headers: list[str], row: tuple[str, ...]) -> tuple[str, ...]:
    """Return a row without the cells that change with time."""
    return tuple(cell for header, cell in zip(headers, row, strict=True) if header not in {"AGE", "DURATION"})


def _resource(one: Json) -> str:

    kind = BY_NAME.get(one["kind"])
    return kind.resource if kind is not None else one["kind"].lower()


def write(value: Json, output: str) -> None:
    """Write an object in one of the formats of ``-o``."""
    if output == "json":
        show_json(value)
    elif output == "yaml":
        import yaml

        show([yaml.safe_dump(value, sort_keys=False).rstrip()])
    elif output.startswith("jsonpath="):
        from gpupool.specs.kubernetes.jsonpath import evaluate

        write_out(evaluate(output.removeprefix("jsonpath="), value).encode())
    else:
        raise typer.BadParameter(f"'{output[:40]}' after -o is not json, yaml, name, wide or jsonpath=TEMPLATE")


POLL_TIMEOUT_S = 25.0
EXTRA_WAIT_S = 30.0
SERVICE_WAIT_S = 300.0  # for the requests of the replicas, and their end


def find_targets(
    words: Sequence[str], files: Sequence[str], *, every: bool, labelled: bool
) -> list[ObjectTarget] | None:
    """Return the objects that words or files name, or None if the words are plain names of workloads.

    Raises ``GpupoolError``.
    """
    if files:
        return [target for file in files for target in _of_file(file)]
    if not words or not is_kind(words[0]):
        return None
    if "/" in words[0]:
        return None if words[0].rpartition("/")[2].isdecimal() else parse_targets(words)
    if len(words) == 1 and not every and not labelled:
        return None  # a workload may have the name of a kind
    return parse_targets(words)


def _of_file(name: str) -> list[ObjectTarget]:
    from gpupool.cli.request.manifest_files import read_manifests

    found = [one for path, text in read_manifests([name], recursive=False) for one in named_objects(text, path)]
    return [ObjectTarget(BY_NAME[kind], (object_name,)) for kind, object_name in reversed(found)]


@dataclass(frozen=True, slots=True)
class Removal:
    """Options of a deletion. ``grace_s`` None: the grace period of each workload; 0: KILL at once."""

    ignore: bool = False
    wait: bool = True
    grace_s: float | None = None

    def one(self, pool: PoolClient, name: str) -> str:
        """Stop and delete a workload, and return a sentence about it."""
        found = pool.get(workload_path(name))
        deleted = self._remove(pool, found)
        return f"{found['name']} is {'deleted' if deleted else 'stopping; delete it again when it has stopped'}"

    def objects(self, pool: PoolClient, targets: Sequence[ObjectTarget], project: str | None, selector: str) -> int:
        """Delete objects and return the exit status. An error is printed, and the other objects are still deleted."""
        scope = ObjectScope(project, labels=tuple(part for part in selector.split(",") if part))
        status = 0
        for target in targets:
            try:
                self._target(pool, target, scope)
            except GpupoolError as error:
                if not (self.ignore and error.code is ErrorCode.UNKNOWN_WORKLOAD):
                    status = report(error)
        return status

    def _target(self, pool: PoolClient, target: ObjectTarget, scope: ObjectScope) -> None:
        if target.kind is None:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "Nodes cannot be deleted with this command.",
                "See 'gpupool cordon' and 'gpupool drain'.",
            )
        if target.kind is DEPLOYMENT:
            for service in find_deployments(pool, scope, target.names):
                gone = self._remove_service(pool, service)
                show([f'{target.kind.resource} "{service["name"]}" {"deleted" if gone else "is stopping"}'])
            return
        for workload in self._found(pool, target, scope):
            gone = self._remove(pool, workload)
            show([f'{target.kind.resource} "{workload["name"]}" {"deleted" if gone else "is stopping"}'])

    def _found(self, pool: PoolClient, target: ObjectTarget, scope: ObjectScope) -> list[dict[str, Any]]:
        kind = target.kind or POD
        try:
            return find(pool, kind, scope, target.names)
        except GpupoolError as error:
            if kind is POD and error.code is ErrorCode.UNKNOWN_WORKLOAD and not self.ignore:
                hint = "Pods of other kinds belong to a job: delete the job, or use 'gpupool stop NAME/INDEX'."
                raise GpupoolError(error.code, error.message, hint) from error
            raise

    def _remove_service(self, pool: PoolClient, service: dict[str, Any]) -> bool:
        """Return whether the service was deleted; without waiting, it is only stopped."""
        path = f"services/{quote_segment(service['id'])}"
        pool.post(f"{path}/stop", {})
        if not self.wait:
            return False
        deadline = time.monotonic() + SERVICE_WAIT_S
        while True:
            try:
                pool.delete(path)
            except GpupoolError as error:
                if error.code is not ErrorCode.WRONG_STATE or time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                return True

    def _remove(self, pool: PoolClient, workload: dict[str, Any]) -> bool:
        """Return whether the workload was deleted; without waiting, a running one is only stopped."""
        path = workload_path(workload["id"])
        if not WorkloadState(workload["state"]).final:
            how: dict[str, Any] = {} if self.grace_s is None else {"grace_s": self.grace_s, "force": self.grace_s == 0}
            pool.post(f"{path}/stop", how)
            if not self.wait:
                return False
            grace = self.grace_s if self.grace_s is not None else pool.get(path)["limits"]["grace_s"]
            _await_end(pool, path, grace + EXTRA_WAIT_S)
        pool.delete(path)
        return True


def _await_end(pool: PoolClient, path: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        query = {"for": "finished", "timeout_s": min(POLL_TIMEOUT_S, left)}
        if WorkloadState(pool.get(f"{path}/wait", query, timeout_s=POLL_TIMEOUT_S + 10)["state"]).final:
            return
