"""``top``: slices drawn to size with their use, sorting, scrolling and keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from gpupool.cli.render.text import Style
from gpupool.cli.render.top import TopOptions, TopSection, TopSort, gpu_lines, head, screen, slices
from gpupool.cli.tui.top import Keys, State, handle_key, paint

NOW = 1_700_000_000.0
PLAIN, COLOUR = Style(), Style(colour=True)
Json = dict[str, Any]


def part(name: str, permille: int, busy: float | None = None, **changes: Any) -> Json:
    return {
        "workload": f"w-{name}",
        "name": name,
        "index": 0,
        "user": "ada",
        "project": "vision",
        "permille": permille,
        "memory_mib": 1024,
        "since": NOW,
        "idle_s": None,
        "busy_percent": busy,
        "memory_used_mib": None,
    } | changes


def gpu(*parts: Json, **changes: Any) -> Json:
    return {
        "index": 0,
        "model": "NVIDIA A30",
        "memory_mib": 24576,
        "memory_used_mib": 2048,
        "utilisation_percent": 40.0,
        "power_w": 165.4,
        "temperature_c": 61.0,
        "sm_clock_mhz": 1440,
        "health": "ok",
        "health_note": "",
        "available": True,
        "emulated": False,
        "slices": list(parts),
    } | changes


def workload(name: str, permille: int = 1000, **changes: Any) -> Json:
    return {
        "id": f"w-{name}",
        "name": name,
        "kind": "training",
        "state": "running" if permille else "queued",
        "user": "ada",
        "project": "vision",
        "created_at": NOW - 60,
        "permille": permille,
        "running": 1 if permille else 0,
        "waiting": 0 if permille else 1,
        "idle_s": 0.0,
        "busy_percent": 10.0,
        "memory_used_mib": 100,
        "cpu_percent": 100.0,
        "ram_used_mib": 200,
    } | changes


def pool(*gpus: Json, workloads: tuple[Json, ...] = ()) -> Json:
    node = {"name": "n1", "state": "up", "cordon_reason": "", "cpus": 8.0, "cpus_used": 2.5, "memory_mib": 65536}
    node |= {"memory_used_mib": 4096, "gpus": [g | {"index": i} for i, g in enumerate(gpus)]}
    user = {"user": "ada", "permille": 750, "idle_permille": 250, "busy_percent": 40.0, "running": 2, "waiting": 1}
    return {"at": NOW, "nodes": [node], "workloads": list(workloads), "workloads_left_out": 0, "users": [user]}


def test_slices_are_drawn_to_scale_and_filled_by_use() -> None:
    assert slices(gpu(part("a", 500, 25.0), part("b", 250, 25.0)), 20, PLAIN) == "█████▒▒▒▒|████|·····"
    assert slices(gpu(part("a", 1000, None)), 10, PLAIN) == "▒▒▒▒▒▒▒▒▒|"
    assert slices(gpu(), 10, PLAIN) == "··········"
    assert slices(gpu(available=False), 10, PLAIN) == "xxxxxxxxxx"


@pytest.mark.parametrize("permille", [1, 20, 50, 333, 999])
def test_smallest_slice_is_visible_and_nothing_overflows(permille: int) -> None:
    many = 1000 // permille
    drawn = slices(gpu(*(part(str(n), permille, 0.0) for n in range(many))), 20, PLAIN)
    assert len(drawn) == 20
    assert drawn[0] != "·"


def test_neighbours_differ_in_colour_and_holders_match() -> None:
    line = gpu_lines(pool(gpu(part("a", 500, 50.0), part("b", 250))), COLOUR)[1]
    assert "\x1b[36m██████████\x1b[0m\x1b[33m▒▒▒▒▒\x1b[0m" in line
    assert "\x1b[36mada/a 0.50 50%\x1b[0m, \x1b[33mada/b 0.25\x1b[0m" in line


def test_top_has_a_line_for_each_gpu() -> None:
    lines = gpu_lines(pool(gpu(part("a", 500, 40.0, idle_s=600.0)), gpu(power_w=None)), PLAIN)
    assert lines[0] == "GPU   MODEL  SLICES                USE        MEMORY  POWER  TEMP  HOLDERS"
    assert lines[1] == "n1:0  A30    ████████▒|··········  40%  2 GiB/24 GiB  165 W  61 C  ada/a 0.50 40% idle 10m00s"
    assert lines[2] == "n1:1  A30    ····················  40%  2 GiB/24 GiB      -  61 C  free"


def test_missing_values_have_no_column_and_problems_are_shown() -> None:
    broken = gpu(power_w=None, temperature_c=None, health="failed", health_note="XID 79", available=False)
    title, line = gpu_lines(pool(broken), PLAIN)
    assert "POWER" not in title
    assert line.endswith("failed XID 79")


def test_lines_fit_the_terminal() -> None:
    shown = gpu_lines(pool(gpu(*(part(f"a-long-name-{n}", 100, 5.0) for n in range(10)))), Style(columns=90))
    assert all(len(line) <= 90 for line in shown)
    assert shown[1].endswith("…")


def test_header_has_totals() -> None:
    said = head(pool(gpu(part("a", 500)), gpu(part("b", 250)), workloads=(workload("a"), workload("w", 0))), PLAIN)
    assert said == "gpupool  0.75 of 2 GPUs allocated  0.80 in use  0.25 idle  1 running  1 waiting  1/1 nodes up"


ROWS = (
    workload("small", 100, busy_percent=90.0, created_at=NOW - 10, user="zoe"),
    workload("large", 2000, idle_s=900.0, memory_used_mib=5),
    workload("first", 0, created_at=NOW - 900),
    workload("middle", 500, memory_used_mib=9000, created_at=NOW - 5000, busy_percent=None),
)


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        (TopSort.GPUS, ["large", "middle", "small", "first"]),
        (TopSort.USE, ["small", "large", "middle", "first"]),
        (TopSort.MEMORY, ["middle", "small", "large", "first"]),
        (TopSort.IDLE, ["large", "small", "middle", "first"]),
        (TopSort.AGE, ["middle", "large", "small", "first"]),
        (TopSort.NAME, ["large", "middle", "small", "first"]),
        (TopSort.USER, ["large", "middle", "small", "first"]),
    ],
)
def test_jobs_are_sorted_and_waiting_jobs_are_last(sort: TopSort, names: list[str]) -> None:
    lines = screen(pool(workloads=ROWS), TopOptions(TopSection.JOB, sort), PLAIN)
    assert [line.split()[0] for line in lines[3:]] == names


def state(**changes: Any) -> State:
    return State(TopOptions(**changes), pool(gpu(), workloads=tuple(workload(f"job-{n:02}", 1) for n in range(50))))


def test_keys_change_the_view() -> None:
    now = state()
    assert not handle_key(now, "3", 10)
    assert now.view.part is TopSection.JOB
    handle_key(now, "i", 10)
    assert (now.view.sort, now.view.reverse) == (TopSort.IDLE, False)
    handle_key(now, "i", 10)
    assert now.view.reverse
    handle_key(now, "tab", 10)
    assert now.view.part is TopSection.USER
    handle_key(now, "back tab", 10)
    handle_key(now, "n", 10)
    assert (now.view.part, now.view.by_node) == (TopSection.JOB, True)
    assert handle_key(now, "space", 10)
    handle_key(now, "x", 10)
    handle_key(now, "escape", 10)
    assert not now.ended
    handle_key(now, "q", 10)
    assert now.ended


def test_scrolling_stays_within_the_list() -> None:
    now = state(part=TopSection.JOB)
    first = paint(now, PLAIN, 12)
    assert first.count("\n") == 11
    assert "more lines below" in first
    assert "job-00" in first
    for _ in range(20):
        handle_key(now, "page down", 9)
    last = paint(now, PLAIN, 12)
    assert "job-49" in last
    assert "more lines below" not in last
    assert "gpupool  " in last, "the head stays"
    handle_key(now, "home", 9)
    assert paint(now, PLAIN, 12) == first


def test_help_names_every_key_and_problems_are_shown() -> None:
    now = state()
    handle_key(now, "?", 10)
    assert "q  quit" in paint(now, PLAIN, 24)
    handle_key(now, "?", 10)
    now.problem = "The pool does not answer."
    assert paint(now, PLAIN, 24).rstrip("\x1b[JK").endswith("The pool does not answer.")


@pytest.fixture
def typed() -> Iterator[tuple[Keys, int]]:
    reading, writing = os.pipe()
    yield Keys(reading), writing
    os.close(reading)
    os.close(writing)


def test_keys_are_named_and_pasted_keys_are_split(typed: tuple[Keys, int]) -> None:
    keys, end = typed
    assert keys.next(0) is None
    os.write(end, b"g\x1b[A\x1b[6~\tq\x1b[Z")
    assert [keys.next(1) for _ in range(6)] == ["g", "up", "page down", "tab", "q", "back tab"]
    os.write(end, b"\x1b[99;99x")
    assert keys.next(1) == "escape"
    assert keys.next(0) is None
