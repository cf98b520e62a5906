"""Conversion of projects, users, reservations, tokens and nodes to rows and back; see ``work.mapping``."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy.engine import RowMapping

from gpupool.domain.decode import decode
from gpupool.domain.nodes.gpu import Node
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.people.access import Department, Project, Token, User
from gpupool.domain.protocol.node_json import report_to_dict
from gpupool.domain.work.service import Service
from gpupool.domain.work.workspace import Workspace
from gpupool.store.schema.columns import Columns, plain_text, shallow


def project_row(project: Project) -> Columns:
    """Return the row of ``projects``."""
    row = shallow(project)
    row["members"] = list(project.members)
    row["note"] = plain_text(project.note)
    for name in ("compute_allowed", "sharing_allowed"):
        row[name] = list(row[name])
    row["model_quotas"] = [list(pair) for pair in project.model_quotas]
    row["rules"] = shallow(project.rules)
    return row


def project_of(row: RowMapping) -> Project:
    """Build a project from its row."""
    return decode(Project, {**row})


def department_row(department: Department) -> Columns:
    """Return the row of ``departments``."""
    return shallow(department) | {"note": plain_text(department.note)}


def department_of(row: RowMapping) -> Department:
    """Build a department from its row."""
    return Department(**row)


_LISTS = ("nodes", "projects", "users")


def reservation_row(reservation: Reservation) -> Columns:
    """Return the row of ``bookings``."""
    row = shallow(reservation)
    return (
        row
        | {name: list(row[name]) for name in _LISTS}
        | {name: plain_text(row[name]) for name in ("name", "note", "created_by")}
    )


def reservation_of(row: RowMapping) -> Reservation:
    """Build a reservation from its row."""
    return decode(Reservation, {**row})


_WORKSPACE_COLUMNS = ("id", "name", "project", "node", "created_at")


def workspace_row(workspace: Workspace) -> Columns:
    """Return the row of ``workspaces``."""
    document = asdict(workspace)
    row = {name: document.pop(name) for name in _WORKSPACE_COLUMNS}
    return row | {"user_name": document.pop("user"), "document": document}


def workspace_of(row: RowMapping) -> Workspace:
    """Build a workspace from its row."""
    columns = {name: row[name] for name in _WORKSPACE_COLUMNS}
    return decode(Workspace, {**columns, "user": row["user_name"], **row["document"]})


_SERVICE_COLUMNS = ("id", "name", "project", "created_at")


def service_row(service: Service) -> Columns:
    """Return the row of ``services``."""
    document = asdict(service)
    row = {name: document.pop(name) for name in _SERVICE_COLUMNS}
    return row | {"user_name": document.pop("user"), "document": document}


def service_of(row: RowMapping) -> Service:
    """Build a service from its row."""
    columns = {name: row[name] for name in _SERVICE_COLUMNS}
    return decode(Service, {**columns, "user": row["user_name"], **row["document"]})


def user_row(user: User) -> Columns:
    """Return the row of ``users``."""
    return {**shallow(user), "role": user.role.value}


def user_of(row: RowMapping) -> User:
    """Build a user from its row."""
    return decode(User, {**row})


def token_row(token: Token) -> Columns:
    """Return the row of ``tokens``."""
    row = shallow(token)
    row["user_name"] = row.pop("user")
    row["role"], row["scope"] = token.role.value, token.scope.value
    row["note"] = plain_text(token.note)
    return row


def token_of(row: RowMapping) -> Token:
    """Build a token from its row."""
    return decode(Token, {**row, "user": row["user_name"]})


def node_row(node: Node) -> Columns:
    """Return the row of ``nodes``."""
    return {
        "name": node.name,
        "state": node.state.value,
        "cordon_reason": plain_text(node.cordon_reason),
        "report": report_to_dict(node.report),
        "sharing": dict(node.sharing),
        "labels": dict(node.labels),
        "cordoned_gpus": {uuid: plain_text(why) for uuid, why in node.cordoned_gpus.items()},
    }


def node_of(row: RowMapping) -> Node:
    """Build a node from its row."""
    return decode(Node, {**row})
