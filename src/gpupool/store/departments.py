"""Departments, and the leases that fair shares remember."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, delete, select

from gpupool.domain.access import Department
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.ports import PastLease
from gpupool.store import tables as t
from gpupool.store.columns import plain_text
from gpupool.store.database import upsert


def departments(conn: Connection) -> list[Department]:
    """All departments by name."""
    rows = conn.execute(select(t.departments)).mappings()
    return sorted((Department(**row) for row in rows), key=lambda department: department.name)


def save_department(conn: Connection, department: Department) -> None:
    """Insert or replace."""
    upsert(conn, t.departments, asdict(department) | {"note": plain_text(department.note)})


def delete_department(conn: Connection, name: str) -> None:
    """Remove; raises ``GpupoolError(UNKNOWN_DEPARTMENT)``."""
    if not conn.execute(delete(t.departments).where(t.departments.c.name == name)).rowcount:
        raise GpupoolError(
            ErrorCode.UNKNOWN_DEPARTMENT, f"There is no department '{name}'.", "See `gpupool department list`."
        )


def past_leases(conn: Connection, since: float) -> list[PastLease]:
    """Leases released since a time, in order of their release."""
    c = t.leases.c
    statement = (
        select(c.project, c.user_name, c.permille, c.granted_at, c.released_at)
        .where(c.released_at > since)
        .order_by(c.released_at, c.epoch)
    )
    return [PastLease(*row) for row in conn.execute(statement)]
