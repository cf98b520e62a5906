"""Kubernetes manifests and the results of applying them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from gpupool.api.schemas.base import Body, View
from gpupool.api.schemas.bodies import Name
from gpupool.api.schemas.work.services import ServiceView
from gpupool.api.schemas.work.workloads import WorkloadView

MAX_TEXT = 4 * 1024 * 1024


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("has a NUL byte")
    return text


Line = Annotated[str, StringConstraints(max_length=4096), AfterValidator(_without_nul)]
Variable = Annotated[str, StringConstraints(max_length=131_072), AfterValidator(_without_nul)]
VariableName = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^=\x00]+$")]


class ApplyBody(Body):
    """A file of manifests and how to apply it.

    ``name`` is the prefix of messages. ``project`` overrides the manifests, ``default_project`` applies to manifests
    without a project. ``no_container``: commands run as processes of the node and images are ignored; manifests then
    override ``env``, ``workdir`` and ``umask``. ``container`` selects a container of pods with several. ``claims``:
    folders of the nodes for persistent volume claims. ``force``: objects that differ are stopped and created again.
    """

    text: Annotated[str, StringConstraints(max_length=MAX_TEXT)]
    name: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00\r\n]+$")] = "manifest"
    project: Name | None = None
    default_project: Name | None = None
    no_container: bool = False
    container: Annotated[str, StringConstraints(max_length=253)] = ""
    claims: Annotated[dict[VariableName, Line], Field(max_length=64, default_factory=dict)]
    env: Annotated[dict[VariableName, Variable], Field(max_length=4096, default_factory=dict)]
    workdir: Line = ""
    umask: Annotated[int, Field(ge=0, le=0o777)] | None = None
    force: bool = False
    dry_run: bool = False


class AppliedView(View):
    """Result for one object: created, configured, unchanged, replaced or skipped.

    ``resource`` is its kind in the notation of kubectl. ``workload`` is null if a dry run would create it, and if it
    was skipped; ``service`` likewise, for a Deployment. ``ended``: it exists, but has ended.
    """

    kind: str
    resource: str
    name: str
    action: str
    workload: WorkloadView | None
    ended: bool
    service: ServiceView | None = None


class RemarkView(View):
    """A difference from the behaviour of a cluster: a stable name, a sentence, and the place in the file."""

    code: str
    message: str
    line: int
    column: int


class AppliedList(View):
    """Result for a file."""

    objects: list[AppliedView]
    warnings: list[RemarkView]
