"""What ``get`` shows: tables, objects, and what changes."""

from __future__ import annotations

import sys
import time
from typing import Any

import typer

from gpupool.cli.kubernetes import Scope, Target, detail, find, find_pods
from gpupool.cli.output import out_style, show, show_json, write_out
from gpupool.cli.pool import Pool, segment
from gpupool.cli.render import kubernetes as render
from gpupool.specs.kubernetes import objects
from gpupool.specs.kubernetes.words import BY_NAME, POD

Json = dict[str, Any]


class Listing:
    """One ``get``: what is asked for, and how it is shown."""

    def __init__(self, pool: Pool, scope: Scope, output: str, *, header: bool) -> None:
        self._pool = pool
        self._scope = scope
        self._output = output
        self._header = header

    def show(self, targets: list[Target]) -> None:
        """All of it, once."""
        if self._output in {"", "wide"}:
            self._show_tables(targets)
            return
        found = [one for target in targets for one in self._objects(target)]
        if self._output == "name":
            show(f"{_resource(one)}/{one['metadata']['name']}" for one in found)
            return
        single = len(targets) == 1 and len(targets[0].names) == 1
        write(found[0] if single else objects.list_object(found), self._output)

    def watch(self, targets: list[Target]) -> None:
        """The tables, and then every row that changes, until Ctrl-C."""
        seen: set[tuple[str, ...]] = set()
        headers_of: tuple[str, ...] | None = None
        while True:
            for target in targets:
                headers, rows = self._rows(target, prefix=len(targets) > 1)
                fresh = [row for row in rows if _steady(headers, row) not in seen]
                if fresh or headers_of is None:
                    self._print(headers, fresh, header=self._header and tuple(headers) != headers_of)
                    headers_of = tuple(headers)
                seen |= {_steady(headers, row) for row in rows}
            time.sleep(1)

    def _show_tables(self, targets: list[Target]) -> None:
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

    def _rows(self, target: Target, *, prefix: bool) -> tuple[list[str], list[tuple[str, ...]]]:

        wide = self._output == "wide"
        if target.kind is None:
            headers, rows = render.node_rows(self._nodes(target), wide=wide)
            return headers, [(f"node/{row[0]}", *row[1:]) if prefix else row for row in rows]
        workloads = self._workloads(target)
        headers, rows = render.rows_of(target.kind, workloads, time.time(), wide=wide)
        if prefix:
            rows = [(f"{target.kind.resource}/{row[0]}", *row[1:]) for row in rows]
        if self._scope.everybody:
            owners = [owner for w in workloads for owner in [(w["project"], w["user"])] * _height(target, w)]
            return ["NAMESPACE", *headers, "USER"], [
                (owner[0], *row, owner[1]) for owner, row in zip(owners, rows, strict=True)
            ]
        return headers, rows

    def _workloads(self, target: Target) -> list[Json]:

        if target.kind is POD:
            return find_pods(self._pool, self._scope, target.names)
        return [] if target.kind is None else find(self._pool, target.kind, self._scope, target.names)

    def _nodes(self, target: Target) -> list[Json]:
        found = self._pool.get("nodes")["nodes"]
        if not target.names:
            return list(found)

        return [self._pool.get(f"nodes/{segment(name)}") for name in target.names]

    def _objects(self, target: Target) -> list[Json]:

        if target.kind is None:
            return [objects.node_object(node) for node in self._nodes(target)]
        now = time.time()
        workloads = self._workloads(target)
        if target.kind is POD:
            return [objects.pod_object(w, replica, now) for w in workloads for replica in w["replicas"]]
        return [objects.object_of(detail(self._pool, workload), now) for workload in workloads]


def _height(target: Target, workload: Json) -> int:
    """How many rows a workload has."""
    return len(workload["replicas"]) if target.kind is POD else 1


def _steady(headers: list[str], row: tuple[str, ...]) -> tuple[str, ...]:
    """A row without what changes by itself."""
    return tuple(cell for header, cell in zip(headers, row, strict=True) if header not in {"AGE", "DURATION"})


def _resource(one: Json) -> str:

    kind = BY_NAME.get(one["kind"])
    return kind.resource if kind is not None else one["kind"].lower()


def write(value: Json, output: str) -> None:
    """An object in one of the formats of ``-o``."""
    if output == "json":
        show_json(value)
    elif output == "yaml":
        import yaml

        show([yaml.safe_dump(value, sort_keys=False).rstrip()])
    elif output.startswith("jsonpath="):
        from gpupool.specs.kubernetes.jsonpath import evaluate

        write_out(evaluate(output.removeprefix("jsonpath="), value).encode())
    else:
        raise typer.BadParameter(f"'{output[:40]}' after -o is none of json, yaml, name, wide and jsonpath=TEMPLATE")
