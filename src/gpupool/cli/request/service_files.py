"""Job files of the kind service for ``apply`` and ``submit``: a service is created, or changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gpupool.cli.transport.pool import PoolClient, quote_segment
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import DEFAULT_PROJECT

Json = dict[str, Any]


def service_requests(name: str, text: str) -> list[Json]:
    """Return the requests of a job file if all of them have the kind service; none for Kubernetes' manifests.

    Raises ``GpupoolError`` for a file of this kind that is not valid.
    """
    from gpupool.specs.jobfile import load_job_file
    from gpupool.specs.text.yaml_nodes import read_yaml

    roots = [root.value for root in read_yaml(text, name)]
    kinds = [root["kind"].value for root in roots if isinstance(root, dict) and "kind" in root]
    foreign = any(isinstance(root, dict) and "apiVersion" in root for root in roots)
    if foreign or not roots or kinds != ["service"] * len(roots):
        return []
    here = os.getcwd()  # noqa: PTH109 - the reader takes text
    return [request.to_body() for request in load_job_file(text.encode(), name=name, folder=here)]


def apply_services(pool: PoolClient, bodies: Sequence[Json], project: str | None, *, dry_run: bool) -> list[Json]:
    """Create or change services; return what was done, in the form of ``apply``."""
    return [_apply(pool, {**body, "project": project or body.get("project")}, dry_run=dry_run) for body in bodies]


def _apply(pool: PoolClient, body: Json, *, dry_run: bool) -> Json:
    body = {key: value for key, value in body.items() if value is not None}
    project, name = body.get("project", DEFAULT_PROJECT), body.get("name", "")
    path = f"services/{quote_segment(f'{project}:{name}')}"
    try:
        before: Json | None = pool.get(path)
    except GpupoolError as error:
        if error.code is not ErrorCode.UNKNOWN_SERVICE:
            raise
        before = None
    if before is None:
        return _done("created", body, None if dry_run else pool.post("services", body))
    if dry_run:
        same = _content(body) == _content(before["definition"] or {}) and before["state"] != "stopped"
        return _done("unchanged" if same else "configured", body, before)
    after = pool.post(f"{path}/update", body)
    changed = any(before[key] != after[key] for key in ("definition", "target")) or before["state"] == "stopped"
    return _done("configured" if changed else "unchanged", body, after)


def _content(body: Json) -> Json:
    """Return what decides if a service changes, without values that are defaults."""
    from gpupool.specs.request import parse_request

    return parse_request({key: value for key, value in body.items() if key not in {"project", "request_id"}}).to_body()


def _done(action: str, body: Json, service: Json | None) -> Json:
    return {
        "kind": "service",
        "resource": "service",
        "name": body["name"],
        "action": action,
        "workload": None,
        "ended": False,
        "service": service,
    }
