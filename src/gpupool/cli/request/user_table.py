"""Tables of users, for ``user import`` (CSV files) and ``project add-group`` (groups of this machine)."""

from __future__ import annotations

import csv
import grp
import io
import pwd
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool.cli.request.project_options import gpu_permille
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import check_name
from gpupool.domain.people.access import Role

MAX_BYTES = 1 << 20
MAX_USERS = 10_000
MAX_MEMBERS = 1000  # of a project
MAX_SHOWN = 20  # errors in one message
COLUMNS = ("user", "role", "uid", "gpu_limit", "email", "projects")
_MAX_UID = 2**32 - 2


@dataclass(frozen=True, slots=True)
class ImportedUser:
    """One user of a table: the settings of the user, and the projects of which the user becomes a member."""

    line: int
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    projects: tuple[str, ...] = ()


def read_users(data: bytes) -> list[ImportedUser]:
    """Return the users of a CSV file whose first line names the columns.

    Raises ``GpupoolError(INVALID_FILE)`` with the line of each error, TOO_LARGE.
    """
    if len(data) > MAX_BYTES:
        raise GpupoolError(ErrorCode.TOO_LARGE, "The file is larger than 1 MiB.", "Split it.")
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig")), restkey="", strict=True, skipinitialspace=True)
        columns = [name.strip().lower() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _invalid([f"The file is not CSV: {error}."]) from error
    unknown = [name for name in columns if name not in COLUMNS]
    if "user" not in columns or unknown or len(set(columns)) < len(columns):
        what = f"The columns {', '.join(columns)[:80] or 'are missing'}" if columns else "The file is empty"
        raise _invalid([f"line 1: {what}; the columns are {', '.join(COLUMNS)}, and user is needed."])
    if len(rows) > MAX_USERS:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"The file has more than {MAX_USERS} users.", "Split it.")
    found, errors = [], []
    seen: dict[str, int] = {}
    for line, row in rows:
        try:
            user = _user(line, row)
        except GpupoolError as error:
            errors.append(f"line {line}: {error.message}")
            continue
        if user.name in seen:
            errors.append(f"line {line}: The user {user.name} is also on line {seen[user.name]}.")
        seen.setdefault(user.name, line)
        found.append(user)
    if errors:
        raise _invalid(errors)
    return found


def read_file(path: str) -> bytes:
    """Return the content of a file (``-``: standard input), at most one byte too long. Raises ``GpupoolError``."""
    if path == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{path} cannot be read: {error.strerror}.", "Give the path of a CSV file."
        ) from error


def users_of_group(group: str, project: str) -> list[ImportedUser]:
    """Return the accounts of this machine in a group, as members of a project. Raises ``GpupoolError(NOT_FOUND)``."""
    try:
        found = grp.getgrnam(group)
    except KeyError as error:
        raise GpupoolError(
            ErrorCode.NOT_FOUND, f"This machine has no group '{group[:80]}'.", "See 'getent group'."
        ) from error
    accounts = {name: account for name in found.gr_mem if (account := _account(name)) is not None}
    accounts |= {account.pw_name: account for account in pwd.getpwall() if account.pw_gid == found.gr_gid}
    if len(accounts) > MAX_USERS:
        raise GpupoolError(ErrorCode.TOO_LARGE, f"The group has more than {MAX_USERS} users.", "Use a smaller group.")
    return [
        ImportedUser(0, check_name(name, "user"), {"uid": account.pw_uid}, (project,))
        for name, account in sorted(accounts.items())
    ]


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The changes of an import: settings by user, all members by project, and what they were before."""

    users: dict[str, dict[str, Any]]
    members: dict[str, list[str]]
    new: frozenset[str]
    before: dict[str, list[str]]

    def lines(self) -> Iterator[str]:
        """Yield a line for each change."""
        for name, settings in self.users.items():
            what = ", ".join(f"{field.removesuffix('_permille')} {value}" for field, value in settings.items())
            yield f"{'add' if name in self.new else 'change'} user {name}: {what or 'role member'}"
        for project, members in self.members.items():
            added = [name for name in members if name not in self.before[project]]
            yield f"add members of project {project}: {', '.join(added)}"
            if not self.before[project]:
                yield f"  project {project} was open to everybody; then it is open to its members only"


def plan_import(table: list[ImportedUser], users: list[dict[str, Any]], projects: list[dict[str, Any]]) -> ImportPlan:
    """Return the changes that make the pool agree with a table. Raises ``GpupoolError`` with the line of each error."""
    known = {user["name"]: user for user in users}
    by_uid = {user["uid"]: user["name"] for user in users if user["uid"] is not None}
    before = {project["name"]: list(project["members"]) for project in projects}
    members: dict[str, list[str]] = {}
    changes: dict[str, dict[str, Any]] = {}
    errors = []
    for user in table:
        now = known.get(user.name, {})
        settings = {field: value for field, value in user.settings.items() if now.get(field) != value}
        owner = by_uid.setdefault(settings["uid"], user.name) if "uid" in settings else user.name
        where = f"line {user.line}: " if user.line else ""
        if owner != user.name:
            errors.append(f"{where}uid {settings['uid']} belongs to {owner}.")
        errors += [f"{where}There is no project '{name}'." for name in user.projects if name not in before]
        if not now:
            settings = {"role": Role.MEMBER.value} | settings
        if settings:
            changes[user.name] = settings
        for project in user.projects:
            if project in before and user.name not in before[project]:
                members.setdefault(project, list(before[project])).append(user.name)
    too_many = [name for name, listed in members.items() if len(listed) > MAX_MEMBERS]
    errors += [f"The project {name} would have more than {MAX_MEMBERS} members." for name in too_many]
    if errors:
        raise _invalid(errors)
    return ImportPlan(changes, members, frozenset(changes.keys() - known.keys()), before)


def _user(line: int, row: dict[str, Any]) -> ImportedUser:
    if "" in row or None in row.values():
        raise GpupoolError(ErrorCode.INVALID_FILE, "It has more or fewer values than there are columns.")
    text = {name: value.strip() for name, value in row.items() if value.strip()}
    name = check_name(text.get("user", ""), "user")
    settings = dict(_settings(text))
    projects = tuple(check_name(project, "project") for project in text.get("projects", "").replace(";", " ").split())
    return ImportedUser(line, name, settings, projects)


def _settings(text: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of ``PUT /v1/users/NAME``."""
    role = text.get("role", "")
    if role and role not in {role.value for role in Role}:
        names = ", ".join(role.value for role in Role)
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{role[:40]}' is not a role: {names}.")
    if role:
        yield "role", role
    if uid := text.get("uid"):
        if not uid.isascii() or not uid.isdecimal() or int(uid[:11]) > _MAX_UID:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, f"'{uid[:20]}' is not the number of an account.")
        yield "uid", int(uid)
    if limit := text.get("gpu_limit"):
        yield "gpu_limit_permille", gpu_permille(limit)
    if email := text.get("email"):
        yield "email", email


def _invalid(errors: list[str]) -> GpupoolError:
    shown = errors[:MAX_SHOWN] + ([f"{len(errors) - MAX_SHOWN} more errors"] if len(errors) > MAX_SHOWN else [])
    return GpupoolError(ErrorCode.INVALID_FILE, "; ".join(shown), "Correct the file; nothing was imported.")
