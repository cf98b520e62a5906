"""CSV files of users, and the changes that they cause."""

from __future__ import annotations

import grp
import os
import pwd
from typing import Any

import pytest

from gpupool.cli.request import user_table
from gpupool.cli.request.user_table import plan_import, read_users, users_of_group
from gpupool.domain.errors import ErrorCode, GpupoolError

USERS: list[dict[str, Any]] = [
    {"name": "ann", "role": "member", "uid": 1000, "gpu_limit_permille": None, "email": ""},
    {"name": "ben", "role": "manager", "uid": None, "gpu_limit_permille": 500, "email": "ben@example.org"},
]
PROJECTS: list[dict[str, Any]] = [{"name": "default", "members": []}, {"name": "cs101", "members": ["ann"]}]


def test_settings_and_projects() -> None:
    text = "User, role,uid,gpu_limit,email,projects\nann,,1000,0.5,,cs101\n"
    text += "dan,viewer,,none,dan@example.org,cs101;default\nben,,,,,\n"
    plan = plan_import(read_users(text.encode()), USERS, PROJECTS)
    assert plan.users == {
        "ann": {"gpu_limit_permille": 500},
        "dan": {"role": "viewer", "email": "dan@example.org"},
    }
    assert plan.members == {"cs101": ["ann", "dan"], "default": ["dan"]}
    assert plan.new == {"dan"}
    lines = list(plan.lines())
    assert "add members of project cs101: dan" in lines
    assert lines[-1].strip().startswith("project default was open to everybody")


def test_second_import_changes_nothing() -> None:
    text = "user,role,email\nann,member,\nben,manager,ben@example.org\n"
    plan = plan_import(read_users(text.encode()), USERS, PROJECTS)
    assert (plan.users, plan.members, list(plan.lines())) == ({}, {}, [])


def test_every_error_has_its_line() -> None:
    text = "user,role,uid\nann,boss,1\nb b,,\ncarl,,x\n\ndan,,5\ndan,,6\neve,,7,8\n"
    with pytest.raises(GpupoolError) as caught:
        read_users(text.encode())
    assert caught.value.code is ErrorCode.INVALID_FILE
    for part in (
        "line 2: 'boss' is not a role",
        "line 3: 'b b' cannot",
        "line 4: 'x' is not",
        "line 7: The user dan is also on line 6",
        "line 8: It has more",
    ):
        assert part in caught.value.message


def test_conflicts_with_the_pool_have_their_line() -> None:
    with pytest.raises(GpupoolError) as caught:
        plan_import(
            read_users(b"user,uid,projects\neve,1000,cs101\nfay,,none-such\nguy,77,\nhal,77,\n"), USERS, PROJECTS
        )
    for part in (
        "line 2: uid 1000 belongs to ann",
        "line 3: There is no project 'none-such'",
        "line 5: uid 77 belongs to guy",
    ):
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_FILE),
        (b"name,role\nann,member\n", ErrorCode.INVALID_FILE),
        (b"user,user\nann,ann\n", ErrorCode.INVALID_FILE),
        (b"user,colour\nann,red\n", ErrorCode.INVALID_FILE),
        (b"user\n\xff\n", ErrorCode.INVALID_FILE),
        (b'user\n"ann\n', ErrorCode.INVALID_FILE),
        (b"user\n" + b"x" * user_table.MAX_BYTES, ErrorCode.TOO_LARGE),
        (b"user\n" + b"".join(b"u%d\n" % number for number in range(user_table.MAX_USERS + 1)), ErrorCode.TOO_LARGE),
    ],
)
def test_refused_files(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(GpupoolError) as caught:
        read_users(data)
    assert caught.value.code is code
    assert caught.value.hint


def test_accounts_of_a_group() -> None:
    own = pwd.getpwuid(os.getuid())
    found = {user.name: user for user in users_of_group(grp.getgrgid(own.pw_gid).gr_name, "cs101")}
    assert found[own.pw_name].settings == {"uid": own.pw_uid}
    assert found[own.pw_name].projects == ("cs101",)
    with pytest.raises(GpupoolError) as caught:
        users_of_group("no-such-group", "cs101")
    assert caught.value.code is ErrorCode.NOT_FOUND
