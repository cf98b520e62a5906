"""Submission from a form or a job file, and resubmission of a workload."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.schemas.work.plans import PlanView
from gpupool.api.views.plan_view import plan_view
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.sharing import TRAITS
from gpupool.domain.people.access import DEFAULT_PROJECT, Actor, Role
from gpupool.domain.work.workload import Workload
from gpupool.services.pool import PoolServices
from gpupool.specs.jobfile import load_job_file
from gpupool.specs.request import WorkloadRequest
from gpupool.specs.resubmit import request_of
from gpupool.web.deps import Form, SentForm, Services, Visitor, reads
from gpupool.web.pages.submit.account import SystemAccount, account_of
from gpupool.web.pages.submit.command_line import command_line
from gpupool.web.pages.submit.form import (
    FIELDS,
    INPUTS,
    KINDS,
    SECTIONS,
    FieldMistake,
    FormDraft,
    form_values,
    read_form,
)
from gpupool.web.rendering import back_to, page

router = APIRouter()

MAX_JOBS = 100  # in one file, from a page
FILE_NAME = "job.yml"
EXAMPLE = """\
name: train
command: [python, train.py, --lr, "{lr}"]
gpus: {fraction: 0.5}
sweep:
  grid: {lr: [0.1, 0.01]}
"""


@dataclass(frozen=True, slots=True)
class SubmitContext:
    """The data of the form: its visitor, and the workload that is to run again."""

    services: PoolServices
    visitor: Actor
    account: SystemAccount
    source: Workload | None = None

    @property
    def usual_env(self) -> Mapping[str, str]:
        """Return the variables that the command line passes on by default: of a login, and of the source's shell."""
        before = self.source.program.env if self.source is not None else {}
        return {**self.account.environment, **before}


async def _read_context(services: PoolServices, visitor: Actor, source: str) -> SubmitContext:
    if not visitor.role.includes(Role.MEMBER):
        raise GpupoolError(
            ErrorCode.FORBIDDEN, "A viewer cannot submit work.", "Ask an administrator for the role member."
        )
    desk = SubmitContext(services, visitor, account_of(services.info, visitor))
    if not source:
        return desk
    workload = await services.workloads.get(visitor, source)
    if not services.workloads.can_see(visitor, workload):
        raise GpupoolError(
            ErrorCode.FORBIDDEN, f"{workload.name} belongs to {workload.user}.", "Submit one of your own."
        )
    return replace(desk, source=workload)


# The form


@router.get("/submit", dependencies=[reads(*FIELDS)])
async def form(
    request: Request,
    services: Services,
    visitor: Visitor,
    source: Annotated[str, Query(alias="from", max_length=128)] = "",
    mode: Annotated[str, Query(max_length=10)] = "",
) -> Response:
    """Show the form: empty, filled by the address (``?gpus=0.5``), or from a workload (``?from=NAME``)."""
    desk = await _read_context(services, visitor, source)
    if desk.source is not None:
        body = request_of(desk.source)
        values = form_values(body, desk.account.environment, desk.account.home)
        if values is None or mode == "file":
            return await _file_page(request, desk, yaml.safe_dump(body, sort_keys=False, allow_unicode=True))
    elif mode == "file":
        return await _file_page(request, desk, EXAMPLE, example=True)
    else:
        asked = {name: request.query_params[name][:2000] for name in FIELDS if name in request.query_params}
        values = {"kind": "training", "gpus": "1", **asked}
    draft = read_form(values, desk.account.environment, desk.account.home)
    return await _form_page(request, desk, replace(draft, wrong=()))


@router.post("/submit")
async def submit(request: Request, services: Services, visitor: Visitor, sent: SentForm) -> Response:
    """Submit the form, or make a dry run."""
    desk = await _read_context(services, visitor, sent.text("from"))
    draft = _draft(desk, sent)
    if draft.request is None:
        return await _form_page(request, desk, draft, status=422)
    try:
        if sent.text("do") == "plan":
            return await _form_page(request, desk, draft, plan=await _plan(desk, draft.request))
        made, _ = await services.workloads.submit(visitor, draft.request)
    except GpupoolError as error:
        return await _form_page(request, desk, draft.with_wrong(error), status=error.http_status)
    return back_to(f"/workloads/{made.id}", notice=f"Submitted {made.name}.")


@router.post("/submit/preview")
async def preview(request: Request, services: Services, visitor: Visitor, sent: SentForm) -> Response:
    """Return the preview with the equivalent command line."""
    desk = await _read_context(services, visitor, sent.text("from"))
    return page(request, visitor, "submit/preview.html", title="", **await _preview_values(desk, _draft(desk, sent)))


def _draft(desk: SubmitContext, sent: Form) -> FormDraft:
    values = {name: sent.fields[name][0] for name in FIELDS if name in sent}
    return read_form(values, desk.account.environment, desk.account.home)


async def _plan(desk: SubmitContext, request: WorkloadRequest) -> PlanView:
    return plan_view(await desk.services.plans.plan(desk.visitor, request))


async def _form_page(
    request: Request, desk: SubmitContext, draft: FormDraft, *, plan: PlanView | None = None, status: int = 200
) -> Response:
    projects = await _projects(desk)
    return page(
        request,
        desk.visitor,
        "submit/submit.html",
        title="Run again" if desk.source is not None else "Submit",
        status=status,
        source=desk.source,
        account=desk.account,
        values={"project": DEFAULT_PROJECT, **draft.values},
        errors={wrong.field: f"{wrong.message} {wrong.hint}".strip() for wrong in draft.wrong},
        kinds=KINDS,
        inputs=INPUTS,
        sections=SECTIONS,
        modes=[("", "GPU default"), *((m, f"{m}: {t.summary}" if t.summary else m) for m, t in TRAITS.items())],
        projects=projects,
        models=await _models(desk.services),
        request_id=secrets.token_hex(16),
        plan=plan,
        **await _preview_values(desk, draft),
    )


async def _preview_values(desk: SubmitContext, draft: FormDraft) -> dict[str, Any]:
    """Return the values of the preview, without those that the command line sets by default."""
    body = dict(draft.body)
    if len(await desk.services.access.projects()) == 1:
        body.pop("project", None)
    if body.get("workdir") == desk.account.home:
        del body["workdir"]
    kept = [name for name, value in body.get("env", {}).items() if desk.usual_env.get(name) == value]
    return {"command": command_line(body, kept), "wrong": draft.wrong}


async def _projects(desk: SubmitContext) -> list[tuple[str, str]]:
    """Return the projects that the visitor may submit to."""
    found = await desk.services.access.projects()
    every = desk.visitor.role is Role.ADMIN
    mine = [p.name for p in found if every or not p.members or desk.visitor.user in p.members]
    return [(name, name) for name in mine]


async def _models(services: PoolServices) -> list[str]:
    nodes = await services.nodes.nodes()
    return sorted({gpu.model for node in nodes for gpu in node.report.gpus})


# Job files


@router.post("/submit/file")
async def submit_file(request: Request, services: Services, visitor: Visitor, sent: SentForm) -> Response:
    """Submit the jobs of a file, or make a dry run. Nothing is submitted if a job is invalid."""
    desk = await _read_context(services, visitor, sent.text("from"))
    text = sent.fields.get("file", ("",))[0]
    try:
        requests = _with_ids(desk, _read(text, desk), sent.text("request_id"))
        if sent.text("do") == "plan":
            plans = [await _plan(desk, one) for one in requests]
            return await _file_page(request, desk, text, plans=plans)
        made = [(await services.workloads.submit(visitor, one))[0] for one in requests]
    except GpupoolError as error:
        wrong = FieldMistake("file", error.message, error.hint)
        return await _file_page(request, desk, text, wrong=wrong, status=error.http_status)
    if len(made) == 1:
        return back_to(f"/workloads/{made[0].id}", notice=f"Submitted {made[0].name}.")
    return back_to("/workloads", notice=f"Submitted {len(made)} workloads.")


def _read(text: str, desk: SubmitContext) -> list[WorkloadRequest]:
    found = load_job_file(text.encode(), name=FILE_NAME, folder=desk.account.home)
    if len(found) > MAX_JOBS:
        raise GpupoolError(
            ErrorCode.TOO_LARGE,
            f"The file has {len(found)} jobs; a page takes {MAX_JOBS}.",
            "Use `gpupool submit -f`.",
        )
    return found


def _with_ids(desk: SubmitContext, requests: list[WorkloadRequest], request_id: str) -> list[WorkloadRequest]:
    """Return the jobs with the default environment and request ids, so that a repetition is harmless."""
    base = request_id[:64] or secrets.token_hex(16)
    usual = desk.account.environment if desk.source is None else {}
    return [
        one.model_copy(update={"env": {**usual, **one.env}, "request_id": one.request_id or f"{base}.{number}"})
        for number, one in enumerate(requests)
    ]


async def _file_page(  # noqa: PLR0913 - what a page can show
    request: Request,
    desk: SubmitContext,
    text: str,
    *,
    wrong: FieldMistake | None = None,
    plans: list[PlanView] | None = None,
    example: bool = False,
    status: int = 200,
) -> Response:
    return page(
        request,
        desk.visitor,
        "submit/file.html",
        title="Run again" if desk.source is not None else "Submit a job file",
        status=status,
        source=desk.source,
        text=text,
        example=example,
        error=f"{wrong.message} {wrong.hint}".strip() if wrong else "",
        plans=plans,
        request_id=secrets.token_hex(16),
    )
