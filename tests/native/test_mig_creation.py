"""The agent's part of MIG instances on demand, on the fake NVML: what is recorded, and what a crash leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from native_harness import GIB
from nvml_harness import holder_program, on_gpu
from test_nvml_emulated import in_agent

CARDS = "A100-80GB[mig],A100-80GB[3g.40gb],T4"
PRELUDE = """
from gpupool.domain.errors import GpupoolError
from gpupool.node.inventory.mig_instances import MigInstances
nvml = inventory.nvml(run, shared=False)
mig = MigInstances(nvml, run / "record.json", "boot 1")
empty, cut = mig.cards()
def refused(function, *words):
    try:
        function(*words)
    except GpupoolError as error:
        return [error.code, error.message]
def free(card=0):
    return {each.name: each.free for each in mig.cards()[card].profiles}
def shown():
    return [[gpu.index, gpu.mig_profile, gpu.memory_mib] for gpu in inventory.gpus(frozenset()) if gpu.mig_profile]
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path


def ask(native_out: Path, run: Path, script: str) -> Any:
    return in_agent(native_out, run, CARDS, PRELUDE + script)


def test_instances_are_created_recorded_and_removed(native_out: Path, run: Path) -> None:
    told = ask(
        native_out,
        run,
        """
first, second = mig.create(empty.uuid, "3g.40gb"), mig.create(empty.uuid, "2g.20gb")
told = {"cards": [[card.index, card.model] for card in (empty, cut)], "shown": shown(), "free": free()}
told["again"] = sorted(MigInstances(nvml, run / "record.json", "boot 1").created) == sorted([first, second])
told["other boot"] = len(MigInstances(nvml, run / "record.json", "boot 2").created)
mig.remove(first)
tell({**told, "left": shown(), "created": list(mig.created) == [second], "room": free()["3g.40gb"]})
""",
    )
    assert told["cards"] == [[0, "NVIDIA A100-SXM4-80GB"], [1, "NVIDIA A100-SXM4-80GB"]]
    assert told["shown"] == [[100, "3g.40gb", 40960], [101, "2g.20gb", 20480], [200, "3g.40gb", 40960]]
    assert (told["free"]["1g.10gb"], told["free"]["3g.40gb"]) == (1, 0)
    assert (told["again"], told["other boot"]) == (True, 0)
    assert told["left"] == [[101, "2g.20gb", 20480], [200, "3g.40gb", 40960]]
    assert (told["created"], told["room"]) == (True, 1)


def test_what_is_not_the_pools_or_not_possible_is_refused(native_out: Path, run: Path) -> None:
    told = ask(
        native_out,
        run,
        """
own = next(gpu for gpu in inventory.gpus(frozenset()) if gpu.mig_profile)
tell({"foreign": refused(mig.remove, own.uuid), "profile": refused(mig.create, empty.uuid, "9g.1gb; rm -rf /"),
      "card": refused(mig.create, "GPU-1", "1g.10gb"), "full": refused(mig.create, cut.uuid, "7g.80gb"),
      "left": shown()})
""",
    )
    assert told["foreign"][0] == "NOT_FOUND"
    assert told["profile"] == ["INVALID_REQUEST", "The card has no MIG profile '9g.1gb; rm -rf /'."]
    assert told["card"][0] == "INVALID_REQUEST"
    assert told["full"] == ["WRONG_STATE", "Cannot create a MIG instance 7g.80gb: the card has no room for it."]
    assert told["left"] == [[200, "3g.40gb", 40960]]


@pytest.mark.parametrize(("fault", "code"), [("mig-denied", "FORBIDDEN"), ("no-compute-instance", "WRONG_STATE")])
def test_failed_step_leaves_nothing(native_out: Path, run: Path, fault: str, code: str) -> None:
    ask(native_out, run, "tell(0)")
    (run / "fake-gpus/faults.conf").write_text(f"0 {fault}\n")
    told = ask(native_out, run, 'tell([refused(mig.create, empty.uuid, "3g.40gb")[0], shown()])')
    assert told == [code, [[200, "3g.40gb", 40960]]]
    (run / "fake-gpus/faults.conf").unlink()
    assert ask(native_out, run, "tell(free())")["7g.80gb"] == 1, "also no GPU instance without compute instance"
    record = run / "record.json"
    assert not record.exists() or json.loads(record.read_text())["pending"] is None


def test_instance_with_a_process_is_not_removed(native_out: Path, run: Path) -> None:
    ask(native_out, run, 'tell(mig.create(empty.uuid, "1g.10gb"))')
    with on_gpu(holder_program(run), run / "fake-gpus", (0, 0), GIB) as process:
        code, message = ask(native_out, run, "tell(refused(mig.remove, *mig.created))")
        assert code == "WRONG_STATE"
        assert str(process.pid) in message
    assert ask(native_out, run, "mig.remove(*mig.created); tell(len(mig.created))") == 0


def killed_while_creating(native_out: Path, run: Path, expected: str) -> None:
    """Kill a process that creates an instance, once its record has this text."""
    ask(native_out, run, "tell(0)")
    (run / "fake-gpus/faults.conf").write_text("0 slow-instance 60000\n")
    script = "import test_nvml_emulated as t; exec(t._PRELUDE)"
    script = f"{script}\n{PRELUDE}\nmig.create(empty.uuid, '3g.40gb')\n"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(native_out), str(run), CARDS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        record = run / "record.json"
        deadline = time.monotonic() + 30
        while not (record.exists() and expected in record.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert expected in record.read_text()
    (run / "fake-gpus/faults.conf").unlink()


def test_killed_between_both_instances_leaves_nothing_after_the_next_start(native_out: Path, run: Path) -> None:
    killed_while_creating(native_out, run, '"number":1')
    told = ask(native_out, run, "before = free(); mig.tidy(); tell([before, free(), shown()])")
    assert told[0]["7g.80gb"] == 0
    assert told[1]["7g.80gb"] == 1
    assert told[2] == [[200, "3g.40gb", 40960]]


def test_killed_before_the_number_was_recorded_leaves_only_what_others_created(native_out: Path, run: Path) -> None:
    killed_while_creating(native_out, run, '"number":1')
    record = json.loads((run / "record.json").read_text())
    record["pending"].update(number=-1, start=-1)
    (run / "record.json").write_text(json.dumps(record))
    told = ask(
        native_out,
        run,
        """
handle = nvml.nvmlDeviceGetHandleByUUID(empty.uuid)
made = nvml.nvmlDeviceCreateGpuInstance(handle, 9)  # an administrator creates one of the same profile
nvml.nvmlGpuInstanceCreateComputeInstance(made, 2)
mig.tidy()
tell([shown(), free()["3g.40gb"], len(mig.created)])
""",
    )
    assert told == [[[101, "3g.40gb", 40960], [200, "3g.40gb", 40960]], 1, 0]


def test_instance_that_an_administrator_replaced_is_no_longer_the_pools(native_out: Path, run: Path) -> None:
    told = ask(
        native_out,
        run,
        """
uuid = mig.create(empty.uuid, "3g.40gb")
handle = nvml.nvmlDeviceGetHandleByUUID(empty.uuid)
instance = mig._record.instances[0]
mig._destroy(handle, instance)
made = nvml.nvmlDeviceCreateGpuInstance(handle, 9)
nvml.nvmlGpuInstanceCreateComputeInstance(made, 2)
mig.tidy()
tell([refused(mig.remove, uuid)[0], shown()[0]])
""",
    )
    assert told == ["NOT_FOUND", [100, "3g.40gb", 40960]]


def test_half_removed_instance_is_destroyed(native_out: Path, run: Path) -> None:
    told = ask(
        native_out,
        run,
        """
from ctypes import byref, c_uint
mig.create(empty.uuid, "3g.40gb")
made = nvml.nvmlDeviceGetGpuInstanceById(nvml.nvmlDeviceGetHandleByUUID(empty.uuid), 1)
array, count = (nvml.c_nvmlComputeInstance_t * 1)(), c_uint(1)
nvml.nvmlGpuInstanceGetComputeInstances(made, 2, array, byref(count))
nvml.nvmlComputeInstanceDestroy(array[0])
again = MigInstances(nvml, run / "record.json", "boot 1")
again.tidy()
tell([len(again.created), free()["7g.80gb"]])
""",
    )
    assert told == [0, 1]
