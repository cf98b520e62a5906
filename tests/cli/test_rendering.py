"""Screens at a fixed width, character by character."""

from __future__ import annotations

import time

import pytest
from cli_fake_pool import NOW, detail_view, replica_view, why_view, workload_view
from cli_views import USAGE, busy_gpu, event_view, gpu_view, node_view, project_view, queued_view
from hypothesis import given
from hypothesis import strategies as st

from gpupool.cli.render.machines import gpu_lines, node_detail_lines, node_lines, smi_lines
from gpupool.cli.render.people import project_lines, usage_lines
from gpupool.cli.render.text import Style, bar, clean, cut, table, width_of
from gpupool.cli.render.workloads import detail_lines, event_line, gpus_text, replicas_text, why_lines, workload_lines
from gpupool.cli.tui.watch import paint

PLAIN = Style()
NARROW = Style(columns=110)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_ps_output() -> None:
    shown = workload_lines([queued_view(), workload_view("w0000000001")], NOW + 190, PLAIN)
    head, waiting, running = (line.split("  ") for line in shown)
    assert shown[0] == "NAME     STATE    KIND  PROJECT  USER  GPUS  REPLICAS  NODE  AGE    ID           ABOUT"
    assert shown[1].endswith("  -     3m10s  w0000000002  It needs 0.50 GPU; 0.30 is free.")
    assert shown[2].startswith("train-1  running  run   default  ann   0.50  -         gpu1  3m10s  w0000000001  ")
    assert shown[2].endswith("  python3 train.py --name 'two words'")
    assert (head[0], waiting[0], running[0]) == ("NAME", "wait-1", "train-1")


def test_ps_on_a_terminal_cuts_the_last_column_and_colours_the_state() -> None:
    shown = workload_lines([workload_view("w0000000001")], NOW, Style(colour=True, columns=50))
    assert shown[1].endswith("…")
    assert "\x1b[32mrunning\x1b[0m" in shown[1]


def test_stopped_replicas_are_not_done() -> None:
    counts = {"pending": 0, "starting": 0, "running": 0, "stopping": 0, "succeeded": 1, "failed": 1, "stopped": 48}
    view = workload_view("w0000000001") | {"completions": 50, "counts": counts}
    assert replicas_text(view) == "2/50 done, 1 failed, 48 stopped"


def test_replicas_of_a_workload_on_a_gpu_are_one_holder() -> None:
    [holder] = gpu_view()["holders"]
    many = [{**holder, "name": "nb50", "index": index, "permille": 20} for index in range(30)]
    [_, line] = gpu_lines([gpu_view(holders=[*many, holder])], NARROW)
    assert line.endswith("ann/nb50 x30 0.60, ann/train-1 0.60")


def test_list_gpus_output() -> None:
    assert gpu_lines([gpu_view(), busy_gpu()], NARROW) == [
        "NODE  GPU  MODEL     MEMORY  FREE  FREE MEMORY  HEALTH  HOLDERS",
        "gpu1  0    Tesla T4  15 GiB  0.40  6 GiB        ok      ann/train-1 0.60",
        "gpu1  1    Tesla T4  15 GiB  -     -            ok      foreign: root Xorg (pid 77, 200 MiB)",
    ]


def test_smi_output() -> None:
    assert smi_lines([gpu_view()], NARROW)[1] == (
        "gpu1  0    Tesla T4  0000:3b:00.0  1024 / 15360 MiB  34%   ██████░░░░  0.60  ann/train-1 0.60"
    )


def test_nodes_output() -> None:
    assert node_lines([node_view(state="cordoned", cordon_reason="new driver")], PLAIN) == [
        "NODE  STATE     GPUS          ALLOCATABLE  ALLOCATED  CPUS  MEMORY        DRIVER  LABELS  ABOUT",
        "gpu1  cordoned  2 x Tesla T4  2            0.60 of 2  2/8   4 GiB/64 GiB  550.54  rack=3  new driver",
    ]
    assert "no answer for 2m" in node_lines([node_view(state="down", silent_s=120.0)], PLAIN)[1]


def test_mig_instance_names_its_gpu() -> None:
    gpu = gpu_view(102, model="NVIDIA A30 MIG 1g.6gb", mig_profile="1g.6gb", parent_uuid="GPU-card")
    text = "\n".join(node_detail_lines(node_view(gpus=[gpu, gpu_view(1)]), NOW, PLAIN))
    assert "GPU 102  NVIDIA A30 MIG 1g.6gb" in text
    assert text.count("MIG:") == 1
    assert "1g.6gb of card GPU-card" in text


def test_why_output() -> None:
    assert why_lines(why_view(), PLAIN) == [
        "It needs 0.50 GPU on a Tesla T4; 0.30 is free. [NO_CAPACITY]",
        "Position 3 in the queue (2 ahead in the pool, 2 of them in its project).",
        "It should start in about 4m00s: the median of 12 earlier runs.",
        "suggestion: Ask for 0.30 or less.",
    ]


def test_describe_has_everything() -> None:
    detail = detail_view(
        "w0000000001",
        state="queued",
        replicas=[replica_view(notes=["no cgroup: --cpus has no effect"], interruptions=2)],
    )
    text = "\n".join(detail_lines(detail, [event_view()], why_view(), NOW + 60, PLAIN))
    for part in (
        "w0000000001",
        "queued",
        "Why it waits",
        "Position 3",
        "0:0.50",
        "note: no cgroup",
        "STARTED",
        "log 64 MiB",
        "2 times",
    ):
        assert part in text


def test_events_output() -> None:
    assert event_line(event_view(), PLAIN) == (
        "2023-11-14 22:13:20  STARTED            w0000000001/0  ann: It runs on gpu1."
    )


def test_projects_and_usage_output() -> None:
    assert project_lines([project_view()], "team-a", PLAIN)[1].startswith("team-a *  2.50   0.60       1")
    assert usage_lines(USAGE, PLAIN)[-3:] == [
        "team-a   ann   2.00       1",
        "default  ben   0.50       2",
        "total          2.50       3",
    ]


def test_describe_node_output() -> None:
    text = "\n".join(node_detail_lines(node_view(), NOW + 60, PLAIN))
    for part in ("GPU 1: NV4", "train-1/0  0.60 (9 GiB)  ann, default  for 1m00s", "12.4", "rack=3"):
        assert part in text


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        ({"count": 1, "permille": 1000}, "1"),
        ({"count": 2, "permille": 500}, "2 x 0.50"),
        ({"count": 1, "permille": 25, "models": ["t4"]}, "0.025 t4"),
        ({"count": 1, "permille": 1000, "memory_mib": 2048}, "2 GiB"),
    ],
)
def test_gpu_amounts_are_formatted(gpus: dict[str, object], text: str) -> None:
    assert gpus_text({"memory_mib": None, "models": [], "labels": {}} | gpus) == text


def test_slice_of_one_permille_is_visible() -> None:
    assert (bar(0), bar(1), bar(999), bar(1000)) == ("░" * 10, "█" + "░" * 9, "█" * 10, "█" * 10)


def test_screen_names_hidden_rows() -> None:
    assert paint([str(n) for n in range(10)], 5).count("\n") == 4
    assert "… and 7 more lines" in paint([str(n) for n in range(10)], 5)


@given(st.text())
def test_control_sequences_are_removed(text: str) -> None:
    assert all(c.isprintable() for c in clean(text))


@given(st.text("ab漢e\u0301", max_size=30), st.integers(1, 20))
def test_cut_respects_the_columns(text: str, columns: int) -> None:
    assert width_of(cut(text, columns)) <= columns


@given(st.lists(st.lists(st.text("ab漢", max_size=9), min_size=3, max_size=3), max_size=5), st.integers(40, 90))
def test_tables_are_aligned_and_no_wider_than_the_terminal(rows: list[list[str]], columns: int) -> None:
    lines = table(("A", "B", "C"), rows, Style(columns=columns))
    assert len(lines) == len(rows) + 1
    assert all(width_of(line) <= columns for line in lines)


@pytest.mark.parametrize(("columns", "gone"), [(400, ()), (100, ("KIND", "ID")), (80, ("KIND", "ID", "NODE"))])
def test_narrow_list_keeps_the_reason(columns: int, gone: tuple[str, ...]) -> None:
    ending = {"code": "IDLE_LIMIT", "sentence": "idle for 31m02s; the limit is 30m00s", "remedy": ""}
    view = workload_view("w0000000001", state="stopped", ending=ending)
    heading, line = workload_lines([view], NOW, Style(columns=columns))
    assert "idle for 31m02s; the limit is 30m00s" in line
    assert all(width_of(each) <= columns for each in (heading, line))
    assert not set(gone) & set(heading.split())
    assert {"NAME", "STATE", "GPUS", "ABOUT"} <= set(heading.split())
