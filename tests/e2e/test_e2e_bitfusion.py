"""The table of docs/from-bitfusion.md, executed line by line on a real pool."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from e2e_pool import RealPool

PAGE = Path(__file__).parents[2] / "docs" / "from-bitfusion.md"
ROWS = re.findall(r"^\| `(bitfusion [^`]*)` \| `(gpupool [^`]*)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
VARIABLE = re.compile(r"\d+|lease-\w+")
TIME = re.compile(r"\d\d:\d\d:\d\d")


def test_table_of_the_documentation_holds(pool: RealPool, tmp_path: Path) -> None:
    """Both commands of a row succeed, and programs print the same."""
    pool("compat", "install", "bitfusion", "--dir", str(tmp_path))
    env = pool.env | {"PATH": f"{tmp_path}:{pool.env['PATH']}"}
    node = pool.json("nodes")["nodes"][0]["name"]
    programs = [row for row in ROWS if row[0].split()[1] == "run"]
    leases = [row for row in ROWS if row[0].split()[1] in {"request_gpus", "client", "release_gpus"}]
    assert len(programs) >= 8
    assert len(leases) == 6

    def run(text: str) -> str:
        words = shlex.split(text.replace("$NODE", node))
        done = subprocess.run(words, cwd=pool.work, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in ({0, 1} if words[1] in {"localhealth", "doctor"} else {0}), (text, done.stderr)
        return done.stdout

    for theirs, ours in programs:
        assert VARIABLE.sub("", run(theirs)) == VARIABLE.sub("", run(ours)), theirs
    for column in (0, 1):  # each column is a lease from its request to its release
        for row in leases:
            run(row[column])
    for theirs, ours in [row for row in ROWS if row not in programs and row not in leases]:
        heads = [TIME.sub("TIME", text).splitlines()[:1] for text in (run(theirs), run(ours))]
        assert heads[0] == heads[1], theirs
    pool("compat", "remove", "bitfusion", "--dir", str(tmp_path))
    assert not (tmp_path / "bitfusion").exists()


@pytest.mark.parametrize(
    "options", [("--filter", "node=other|another"), ("-l", "10.9.8.7:56001"), ("--filter", "cuda=1.0")]
)
def test_nodes_that_do_not_exist_are_refused(pool: RealPool, options: tuple[str, ...]) -> None:
    done = pool("run", "-q", *options, "--", "true", ok=False)
    assert done.returncode == 125
    assert b"has the labels" in done.stderr
