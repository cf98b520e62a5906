"""The table of docs/from-runai.md, executed line by line on a real pool, and JupyterLab by --jupyter."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from e2e_pool import RealPool, eventually

PAGE = Path(__file__).parents[2] / "docs" / "from-runai.md"
ROWS = re.findall(r"^\| `(runai [^`]*)` \| `(gpupool [^`]*)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
VARIABLE = re.compile(r"\d+[smh]|w[0-9a-z]{10}|[0-9.]+|(finish|start|creat)\w+")


def test_table_of_the_documentation_holds(pool: RealPool, tmp_path: Path) -> None:
    """Both columns are sessions that succeed, with the same workloads and services."""
    pool("compat", "install", "runai", "--dir", str(tmp_path))
    env = pool.env | {"PATH": f"{tmp_path}:{pool.env['PATH']}"}
    assert len(ROWS) >= 25
    made: list[dict[str, object]] = [{}, {}]
    for column in (0, 1):
        for row in ROWS:
            words = shlex.split(row[column])
            done = subprocess.run(
                words, cwd=pool.work, env=env, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, (row[column], done.stderr)
            name = words[words.index("submit") + 1] if "submit" in words else words[2] if words[1] == "serve" else ""
            if name.startswith("chat"):
                assert pool.json("service", "describe", name)["name"] == name
            elif name:
                assert pool.becomes(name, "running")
                found = pool.json("describe", name)
                kept = ("name", "kind", "gpus", "project", "framework", "command", "preemptible", "gang")
                made[column][name] = {field: found.get(field) for field in kept}
        assert eventually(lambda: pool("service", "delete", "chat1", "-y", ok=False).returncode == 0)
    assert made[0] == made[1]
    assert len(made[0]) == 4


def test_jupyter_is_the_program(pool: RealPool) -> None:
    said = pool("workspace", "submit", "lab", "-g", "0", "--jupyter", "--port", "6006", "--dry-run")
    assert b"jupyterlab" in said.stdout
    assert b"kind: interactive" in said.stdout
    done = pool("training", "submit", "server", "-n", "0", "--port", "6006", "--", "true")
    assert b"'gpupool open server 6006' opens its port 6006" in done.stderr


def test_words_of_the_other_order_and_kind_are_understood(pool: RealPool) -> None:
    pool("workspace", "submit", "dev7", "-n", "0", "--", "sleep", "1000")
    assert pool.becomes("dev7", "running")
    assert pool.text("training", "exec", "dev7", "--stdin", "--", "echo", "inside") == "inside\n"
    assert pool.text("exec", "dev7", "-i", "echo", "inside") == "inside\n"
    assert "tty" in pool.text("exec", "dev7", "-it", "--", "sh", "-c", "[ -t 0 ] && echo tty")
    for verb in ("stop", "show", "delete"):
        refused = pool("workspace", verb, "dev7", ok=False)
        assert b"dev7 is a workload, not a workspace. [UNKNOWN_WORKSPACE]" in refused.stderr
    assert b"gpupool config project x" in pool("project", "set", "x", ok=False).stderr
    pool("stop", "dev7", "--force")
