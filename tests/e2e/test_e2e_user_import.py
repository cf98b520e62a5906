"""Users and members that are added before their first use."""

from __future__ import annotations

import grp

from e2e_pool import RealPool


def test_table_adds_users_and_members(pool: RealPool) -> None:
    pool("project", "create", "cs101", "--member", pool.json("whoami")["user"])
    table = pool.work / "users.csv"
    table.write_text("user,role,gpu_limit,email,projects\nada-9,,0.5,ada@example.org,cs101\nbob-9,viewer,,,\n")
    planned = pool.text("user", "import", str(table), "--dry-run")
    assert "add user ada-9: role member, gpu_limit 500, email ada@example.org" in planned
    assert "ada-9" not in [user["name"] for user in pool.json("user", "list")["users"]]
    assert pool.text("user", "import", str(table)) == planned
    users = {user["name"]: user for user in pool.json("user", "list")["users"]}
    assert (users["ada-9"]["gpu_limit_permille"], users["bob-9"]["role"]) == (500, "viewer")
    assert "ada-9" in pool.text("project", "members", "cs101")
    assert pool.text("user", "import", "-", stdin=table.read_bytes()) == ""
    table.write_text("user,projects\ncarl-9,none-such\n")
    refused = pool("user", "import", str(table), ok=False)
    assert b"line 2: There is no project 'none-such'" in refused.stderr


def test_group_of_the_machine_becomes_members(pool: RealPool) -> None:
    pool("project", "create", "lab", "--member", pool.json("whoami")["user"])
    group = grp.getgrgid(1).gr_name  # its account exists on every machine
    planned = pool.text("project", "add-group", "lab", group, "--dry-run")
    assert "add members of project lab" in planned
    pool("project", "add-group", "lab", group)
    added = planned.partition("project lab: ")[2].strip().split(", ")
    assert set(added) <= set(pool.text("project", "members", "lab").split())
    unknown = pool("project", "create", "other", "--member", "nobody-9", ok=False)
    assert b"gpupool user set nobody-9 --role member" in unknown.stderr
