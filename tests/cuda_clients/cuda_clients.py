"""Clients of CUDA in a pool: how they are run, what is expected of all, and the table of those that ran."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cuda_toolkit import PROGRAMS
from e2e_pool import RealPool, eventually


@dataclass(frozen=True, slots=True)
class Size:
    """A request of `gpupool run`, and the memory that a client must see."""

    words: tuple[str, ...]
    total_mib: int


WHOLE, SLICE = Size(("-g", "1"), 16 << 10), Size(("-m", "2048"), 2 << 10)
EACH_SIZE = pytest.mark.parametrize("size", [pytest.param(WHOLE, id="whole"), pytest.param(SLICE, id="slice")])
_CONTEXT_MIB = 256  # more than the context of any client takes
_STEP_MIB = 64
_BEGIN, _END = "<!-- clients -->\n", "<!-- end of clients -->\n"


class Table:
    """Clients that ran on a whole GPU and in a slice, as docs/sharing.md shows them."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, str]] = {}

    def add(self, client: str, version: str, what: str) -> None:
        self.rows[client] = (version, what)

    def write(self, page: Path) -> None:
        """Replace the table between the marks of this page."""
        before, _, rest = page.read_text().partition(_BEGIN)
        _, _, after = rest.partition(_END)
        clients: dict[str, list[str]] = {}
        for client, (version, what) in self.rows.items():
            clients.setdefault(what, []).append(f"{client} ({version})")
        lines = [f"| {'; '.join(names)} | {what} |\n" for what, names in clients.items()]
        head = "| clients (versions) | what ran |\n|---|---|\n"
        page.write_text(f"{before}{_BEGIN}{head}{''.join(lines)}{_END}{after}")


def run(pool: RealPool, size: Size, *command: str | Path) -> dict[str, Any]:
    """Return what a client wrote."""
    done = pool("run", *size.words, "--", *map(str, command), timeout=110)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_memory(found: dict[str, Any], size: Size, key: str, error: str) -> None:
    """Check that the client got all memory but the context's, was refused the next piece, and gave all back."""
    assert found["total_mib"] == size.total_mib
    check_filled(found, size, key, error)
    assert found["free_mib"] > found[key]["mib"] - _STEP_MIB, "a client may keep its small arrays"


def check_filled(found: dict[str, Any], size: Size, key: str, error: str) -> None:
    """Check that the client got all memory but the context's, and its own error for the next piece."""
    assert found[key]["error"] == error
    assert size.total_mib - _CONTEXT_MIB <= found[key]["mib"] <= size.total_mib - _STEP_MIB


def check_suspension(pool: RealPool, python: str | Path, library: str) -> None:
    """Run a client of a library whose GPU goes to another job while it does not use it, twice."""
    name, words = f"keeps-{library}", ("--interactive", "--lazy", "--return-after", "1s", "--on-preempt", "suspend")
    command = (str(python), str(PROGRAMS / "keeping_client.py"), library)
    pool("submit", "--name", name, *words, "--no-files", "-p", "0.5", "--", *command)
    assert eventually(lambda: "ready" in pool.text("logs", name), pause_s=0.2), pool.text("logs", name)
    for step in range(2):
        assert eventually(lambda: pool.free_permille() == [1000], pause_s=0.2)
        pool("submit", "--name", f"other{step}", "--no-files", "--", "sleep", "600")
        assert pool.becomes(f"other{step}", "running")
        (pool.work / f"step{step}").touch()
        assert eventually(lambda: "waiting for a GPU" in pool.text("ps"), pause_s=0.2)
        pool("stop", f"other{step}", "--grace", "0")
        assert eventually(lambda said=step + 1: pool.text("logs", name).count("same") == said, pause_s=0.2)
    for step in range(2):
        (pool.work / f"step{step}").unlink()
