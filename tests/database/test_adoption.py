"""A pool on PostgreSQL whose database was lost on the server takes over the jobs that run."""

from __future__ import annotations

from databases import PostgresServer
from e2e_pool import eventually, fresh_pool


def test_job_survives_loss_of_database_on_server(server: PostgresServer) -> None:
    url = server.fresh()
    with fresh_pool("1xT4", "--database", url) as pool:
        gate = pool.work / "gate"
        wait = f"echo begun; while ! test -e {gate}; do sleep 0.05; done; exit 7"
        pool("submit", "night", "--restart", "never", "-g", "0.5", "--", "sh", "-c", wait)
        assert pool.becomes("night", "running")
        pool.down()
        name = url.partition("?")[0].rpartition("/")[2]
        server.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public", name)
        server.sql("GRANT ALL ON SCHEMA public TO PUBLIC", name)
        pool.up()
        assert eventually(lambda: pool("describe", "night", ok=False).returncode == 0)
        assert pool.becomes("night", "running")
        assert pool.free_permille() == [500]
        gate.touch()
        assert pool("wait", "night", ok=False).returncode == 7
        assert pool.text("logs", "night") == "begun\n"
        assert pool.all_free()
