"""Labels of nodes and rules of projects on the command line."""

from typing import Any

from cli_fake_pool import FakePool
from cli_views import node_view, pool_view, project_view


def test_labels_are_set_shown_and_removed(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/nodes/gpu1/labels"] = node_view(labels={"rack": "r1"})
    assert b"rack" in gpupool("node", "label", "gpu1", "rack=r1", "note=a=b", "old-").stdout
    assert pool.requests[-1][2] == {"put": {"rack": "r1", "note": "a=b"}, "remove": ["old"]}
    pool.answers["GET /v1/nodes/gpu1"] = node_view()
    assert gpupool("node", "label", "gpu1").returncode == 0
    for wrong in (("rack",), ("rack=1", "rack=2"), ("-",)):
        assert b"INVALID_REQUEST" in gpupool("node", "label", "gpu1", *wrong).stderr


def test_rules_are_set_and_removed(pool: FakePool, gpupool: Any) -> None:
    pool.answers["PATCH /v1/projects/b"] = project_view(name="b")
    pool.answers["GET /v1/nodes"] = {"nodes": [node_view()], "next_cursor": None}
    for words, rules in (
        (("--max-time-limit", "12h", "--min-runtime", "10m"), {"max_time_limit_s": 43200.0, "min_runtime_s": 600.0}),
        (("--max-gpus", "2.5"), {"max_gpus_permille": 2500}),
        (("--max-queued", "500"), {"max_queued": 500}),
        (("--max-queued", "none"), {"max_queued": None}),
        (("--windows", "nights; sat,sun"), {"windows": ["nights", "sat,sun"]}),
        (("--pools", "a100, t4"), {"node_pools": ["a100", "t4"]}),
        (("--pools", "none", "--windows", "none"), {"node_pools": [], "windows": []}),
        (("--max-gpus", "none", "--max-time-limit", "none"), {"max_gpus_permille": None, "max_time_limit_s": None}),
    ):
        assert gpupool("project", "set", "b", *words).returncode == 0
        assert pool.requests[-1][2] == {"rules": rules}
    assert gpupool("project", "set", "b", "--max-gpus", "0").returncode != 0
    pool.answers["GET /v1/projects"] = {"projects": [project_view()]}
    pool.answers["GET /v1/pool"] = pool_view()
    shown = gpupool("describe", "project", "team-a").stdout
    assert b"nights" in shown
    assert b"12h00m at most" in shown


def test_names_that_no_node_has_are_reported(pool: FakePool, gpupool: Any) -> None:
    pool.answers["PATCH /v1/projects/b"] = project_view(name="b")
    pool.answers["GET /v1/nodes"] = {"nodes": [node_view(labels={"pool": "a100"})], "next_cursor": None}
    for words, note in (
        (("--pools", "a100"), b""),
        (("--pools", "a100, a10"), b"No node is in the node pool 'a10' (node pools: a100)."),
        (("--quota-model", "h100=2"), b"No GPU is of the model 'h100'"),
    ):
        done = gpupool("project", "set", "b", *words)
        assert done.returncode == 0
        assert note in done.stderr
        assert bool(note) == (b"No " in done.stderr)
    pool.answers["GET /v1/nodes"] = {"nodes": [node_view(labels={})], "next_cursor": None}
    assert b"(no node has the label 'pool')" in gpupool("project", "set", "b", "--pools", "x").stderr


def test_node_pool_is_a_node_label(pool: FakePool, gpupool: Any) -> None:
    asked = gpupool("submit", "x", "--pool", "a100", "--filter", "rack=r1", "--dry-run", "--", "true").stdout
    assert b"pool: a100" in asked
    assert b"rack: r1" in asked


BOOKING = {
    "id": "b0000000001",
    "name": "CS101 Monday",
    "nodes": ["gpu1", "gpu2"],
    "starts_at": 1795420800.0,
    "ends_at": 1795428000.0,
    "projects": ["cs101"],
    "users": [],
    "lead_s": 43200.0,
    "created_by": "root",
    "note": "",
    "holds": False,
}


def test_reservations_are_created_listed_and_cancelled(pool: FakePool, gpupool: Any) -> None:
    pool.answers["GET /v1/pool"] = pool_view(time_zone="Europe/Berlin")
    pool.answers["POST /v1/bookings"] = BOOKING | {"evictions": 3, "warnings": ["protected work may still run: x"]}
    pool.answers["GET /v1/bookings"] = {"bookings": [BOOKING, BOOKING | {"projects": [], "holds": True}]}
    pool.answers["DELETE /v1/bookings/b0000000001"] = {}
    when = ("--from", "2026-11-23 09:00", "--for", "2h")
    made = gpupool("reserve", "CS101 Monday", "--gpus", "8", "--model", "t4", *when, "--project", "cs101")
    assert made.stdout == b"b0000000001\n"
    assert b"gpu1, gpu2 reserved from Mon 2026-11-23 09:00 to Mon 2026-11-23 11:00 (Europe/Berlin)" in made.stderr
    assert b"3 training replicas" in made.stderr
    assert b"warning: protected work" in made.stderr
    sent = pool.requests[-1][2]
    assert (sent["starts_at"], sent["ends_at"]) == (BOOKING["starts_at"], BOOKING["ends_at"])
    assert (sent["gpus"], sent["models"], sent["nodes"]) == (8, ["t4"], [])
    assert (
        gpupool("reserve", "x", "--nodes", "gpu1, gpu2", "--for", "1h", "--maintenance", "--lead", "1d").returncode == 0
    )
    sent = pool.requests[-1][2]
    assert (sent["nodes"], sent["maintenance"], sent["lead_s"]) == (["gpu1", "gpu2"], True, 86400.0)
    listed = gpupool("reserve", "list").stdout.decode()
    assert "Mon 2026-11-23 09:00" in listed
    assert "maintenance" in listed
    assert gpupool("reserve", "cancel", "b0000000001").returncode == 0
    for wrong in (("x",), ("x", "y", "--for", "1h"), ("x", "--for", "1h", "--from", "soon")):
        assert gpupool("reserve", *wrong).returncode != 0


def test_drain_prints_its_result(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/nodes/gpu1/cordon"] = node_view(state="cordoned")
    told = gpupool("drain", "gpu1", "--reason", "new fans").stderr
    assert b"gpu1 is cordoned; its training is queued again" in told
    assert b"running now: " in told
    assert pool.requests[-1][2] == {"reason": "new fans", "drain": True}
