"""Projects, users, tokens and nodes to rows and back; see ``mapping``."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy.engine import RowMapping

from gpupool.domain.access import Project, ProjectRules, Role, Token, User
from gpupool.domain.gpu import ComputePolicy, ForeignProcess, Gpu, GpuHealth, Node, NodeReport, NodeState, Sharing
from gpupool.store.columns import Columns, build, plain_text, shallow


def project_row(project: Project) -> Columns:
    """The row of ``projects``."""
    row = shallow(project)
    row["members"] = list(project.members)
    row["note"] = plain_text(project.note)
    for name in ("compute_allowed", "sharing_allowed"):
        row[name] = list(row[name])
    row["model_quotas"] = [list(pair) for pair in project.model_quotas]
    row["rules"] = shallow(project.rules)
    return row


def project_of(row: RowMapping) -> Project:
    """The inverse of ``project_row``."""
    compute, sharing = row["compute_default"], row["sharing_default"]
    read = {
        "members": tuple(row["members"]),
        "compute_default": None if compute is None else ComputePolicy(compute),
        "compute_allowed": tuple(map(ComputePolicy, row["compute_allowed"])),
        "sharing_default": None if sharing is None else Sharing(sharing),
        "sharing_allowed": tuple(map(Sharing, row["sharing_allowed"])),
        "model_quotas": tuple((model, permille) for model, permille in row["model_quotas"]),
        "rules": _rules(row["rules"]),
    }
    return Project(**{**row, **read})


def _rules(document: Columns) -> ProjectRules:
    lists = {name: tuple(document.get(name, ())) for name in ("windows", "node_pools", "images", "volumes")}
    return build(ProjectRules, document, **lists)


def user_row(user: User) -> Columns:
    """The row of ``users``."""
    return {**shallow(user), "role": user.role.value}


def user_of(row: RowMapping) -> User:
    """The inverse of ``user_row``."""
    return User(**{**row, "role": Role(row["role"])})


def token_row(token: Token) -> Columns:
    """The row of ``tokens``."""
    row = shallow(token)
    row["user_name"] = row.pop("user")
    row["role"] = token.role.value
    row["note"] = plain_text(token.note)
    return row


def token_of(row: RowMapping) -> Token:
    """The inverse of ``token_row``."""
    columns = {**row, "role": Role(row["role"])}
    return Token(user=columns.pop("user_name"), **columns)


def node_row(node: Node) -> Columns:
    """The row of ``nodes``."""
    return {
        "name": node.name,
        "state": node.state.value,
        "cordon_reason": plain_text(node.cordon_reason),
        "report": asdict(node.report),
        "sharing": dict(node.sharing),
        "labels": dict(node.labels),
    }


def node_of(row: RowMapping) -> Node:
    """The inverse of ``node_row``."""
    return Node(
        report=_report(row["report"]),
        state=NodeState(row["state"]),
        cordon_reason=row["cordon_reason"],
        sharing={gpu: Sharing(mode) for gpu, mode in row["sharing"].items()},
        labels=dict(row["labels"]),
    )


def _report(document: Columns) -> NodeReport:
    gpus = tuple(_gpu(gpu) for gpu in document["gpus"])
    lists = {name: tuple(document.get(name, ())) for name in ("warnings", "sharing")}
    return build(NodeReport, document, gpus=gpus, **lists)


def _gpu(document: Columns) -> Gpu:
    return build(
        Gpu,
        document,
        health=GpuHealth(document.get("health", GpuHealth.OK)),
        links={int(peer): link for peer, link in document.get("links", {}).items()},
        foreign=tuple(build(ForeignProcess, process) for process in document.get("foreign", ())),
    )
