"""Live work is listed, read and stopped while PostgreSQL is down."""

from __future__ import annotations

from databases import PostgresServer
from e2e_pool import alive, eventually, fresh_pool


def test_work_is_listed_and_stopped_while_server_is_down(server: PostgresServer) -> None:
    with fresh_pool("1xT4", "--database", server.fresh()) as pool:
        mark = pool.work / "pid"
        pool("submit", "wild", "-g", "0.5", "--", "sh", "-c", f"echo $$ > {mark}; echo begun; sleep 1000")
        assert eventually(lambda: mark.exists() and mark.read_text().strip())
        assert pool.becomes("wild", "running")
        pid = int(mark.read_text())
        server.stop()
        try:
            assert eventually(lambda: b"DATABASE" in pool("submit", "x", "--", "true", ok=False).stderr)
            assert "wild" in pool.text("ps")
            assert "wild" in pool.text("describe", "wild")
            assert pool.text("logs", "wild") == "begun\n"
            assert "wild" in pool.text("why", "wild")
            pool("get", "pods")
            done = pool("stop", "wild", ok=False)
            assert b"recorded when the database is back" in done.stderr, done.stderr
            assert eventually(lambda: not alive(pid))
        finally:
            server.start()
        assert pool.becomes("wild", "stopped")
        assert pool.all_free()
