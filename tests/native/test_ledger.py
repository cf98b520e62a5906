"""The memory ledger: every interleaving of a few processes, a death at every step, and many real processes at once."""

import ctypes
import json
import os
import random
import signal
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from requires import cc

NATIVE = Path(__file__).parents[2] / "native"
PROGRAMS = Path(__file__).parent / "programs"
SLOTS, SLOT_BYTES, SLOTS_AT = 128, 256, 4096
STATUS_BYTES = SLOTS_AT + SLOTS * SLOT_BYTES
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def compiled(source: Path, out: Path, *options: str, native: Path = NATIVE) -> Path:
    """Compile one C program against the native tree."""
    include = [f"-I{native}", f"-I{native / 'include'}", f"-I{native / 'common'}"]
    base = ["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", *WARNINGS, *include, *options]
    cc(*base, source, "-o", out, "-lpthread")
    return out


@dataclass(frozen=True, slots=True)
class Word:
    """A memory word, taken apart."""

    units: int
    slot: int
    seq: int

    @classmethod
    def of(cls, value: int) -> "Word":
        """Take the number apart as gpupool/pages.h says."""
        return cls(value >> 30, value >> 23 & 0x7F, value & 0x7FFFFF)


@dataclass(frozen=True, slots=True)
class Page:
    """The status file of one GPU without its header."""

    path: Path

    def word(self, offset: int) -> int:
        """Read eight bytes."""
        with self.path.open("rb") as file:
            return int(struct.unpack("<Q", os.pread(file.fileno(), 8, offset))[0])

    def put(self, offset: int, value: int) -> None:
        """Write eight bytes."""
        with self.path.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("<Q", value), offset)

    @property
    def tenant(self) -> Word:
        """Return the tenant's word."""
        return Word.of(self.word(0))

    def owner(self, slot: int) -> int:
        """Return the owner of a slot."""
        return self.word(SLOTS_AT + slot * SLOT_BYTES)

    def intent(self, slot: int) -> Word:
        """Return the intended total of a slot's process."""
        return Word.of(self.word(SLOTS_AT + slot * SLOT_BYTES + 24))

    def ledger(self, slot: int) -> Word:
        """Return the total of a slot's process."""
        return Word.of(self.word(SLOTS_AT + slot * SLOT_BYTES + 32))

    def total(self) -> int:
        """Return the sum of all ledgers."""
        return sum(self.ledger(slot).units for slot in range(SLOTS))

    def start_at_seq(self, seq: int) -> None:
        """Set every slot's sequence number, as after that many operations."""
        for slot in range(SLOTS):
            at = SLOTS_AT + slot * SLOT_BYTES
            self.put(at + 24, slot << 23 | seq)
            self.put(at + 32, slot << 23 | seq)
            self.put(at + 40, seq)
        self.put(0, seq)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program that is a process of a tenant or a repairer."""
    return compiled(PROGRAMS / "ledger_worker.c", tmp_path_factory.mktemp("ledger") / "worker")


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """Create an empty page."""
    path = tmp_path / "status"
    path.write_bytes(bytes(STATUS_BYTES))
    return Page(path)


def run(worker: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the worker to its end."""
    return subprocess.run([worker, *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=False)


# -- every interleaving ---------------------------------------------------------------------------------------------

MODELS = [
    pytest.param("4 0 0 0 0 +3-1+1 +2-2+2", id="two-alive"),
    pytest.param("4 8388606 2 2 0 +3-1 +2-1", id="both-die-repairer-dies-twice-seq-wraps"),
    pytest.param("4 0 1 1 1 +3 +2-1", id="reborn-in-the-same-slot"),
    pytest.param("4 0 1 0 0 +2 +2 +3", id="three-one-dies"),
]


def verdict(model: Path, case: str) -> dict[str, int | str]:
    """Run the model checker; its line."""
    done = subprocess.run([model, *case.split()], stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    line: dict[str, int | str] = json.loads(done.stdout)
    return line


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program that runs the ledger's code through every interleaving."""
    return compiled(PROGRAMS / "ledger_model.c", tmp_path_factory.mktemp("model") / "model")


@pytest.mark.parametrize("case", MODELS)
def test_no_interleaving_or_kill_breaks_the_totals(model: Path, case: str) -> None:
    line = verdict(model, case)
    assert "violation" not in line, line
    assert int(line["ends"]) > 0
    assert int(line["worlds"]) > 100


MISTAKES = [
    pytest.param("if (!note_applied(status, word))", "if (false && !note_applied(status, word))", id="no-helping"),
    pytest.param("total > limit ||", "", id="no-limit"),
    pytest.param(
        "atomic_store_explicit(&slot->intent, ledger, memory_order_release);\n    GP_STEP(8);",
        "GP_STEP(8);",
        id="refusal-left-standing",
    ),
    pytest.param("bool happened = there ||", "bool happened =", id="tenant-not-looked-at"),
    pytest.param("return has == 0 || operate", "return has == 0 || true || operate", id="nothing-given-back"),
    pytest.param("if (intent == ledger)\n        return;", "return;", id="nothing-settled"),
]


@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
def test_model_finds_mistakes(tmp_path: Path, right: str, wrong: str) -> None:
    source = (NATIVE / "common" / "ledger.c").read_text()
    assert right in source
    common = tmp_path / "common"
    common.mkdir()
    (common / "ledger.c").write_text(source.replace(right, wrong).replace('"ledger.h"', '"common/ledger.h"'))
    include = f"-I{NATIVE}"
    broken = compiled(
        PROGRAMS / "ledger_model.c",
        tmp_path / "model",
        include,
        f"-I{NATIVE / 'include'}",
        "-w",
        native=tmp_path,
    )
    assert "violation" in verdict(broken, "4 0 1 1 0 +3-1 +2-1")


# -- a death at every step, in real processes -----------------------------------------------------------------------


def die_and_repair(worker: Path, page: Page, die_at: int, repairer_dies_at: int) -> bool:
    """Return whether the process died at that step; its slot is empty afterwards in both cases."""
    dead = run(worker, "work", page.path, 5, 100, 7, 3, die_at).returncode == -signal.SIGKILL
    if repairer_dies_at:
        run(worker, "repair", page.path, 5, repairer_dies_at)
    assert run(worker, "repair", page.path, 5, 0).returncode == 0
    return dead


@pytest.mark.parametrize("first_seq", [0, 0x7FFFFE])
def test_kill_at_every_step_of_process_and_repairer_is_harmless(worker: Path, page: Page, first_seq: int) -> None:
    page.start_at_seq(first_seq)
    held = int(run(worker, "work", page.path, 2, 100, 1, 1, 0).stdout)
    assert held > 0
    for repairer_dies_at in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9):
        die_at = 1
        while die_and_repair(worker, page, die_at, repairer_dies_at):
            assert page.tenant.units == page.ledger(2).units == held
            assert page.ledger(5).units == page.owner(5) == 0
            assert page.intent(5) == page.ledger(5)
            die_at += 1
        assert die_at > 15


def test_repaired_slot_is_reused_and_its_sequence_continues(worker: Path, page: Page) -> None:
    for _ in range(3):
        assert run(worker, "work", page.path, 9, 100, 1, 4, 0).returncode == 0
        before = page.ledger(9)
        assert before.units == page.tenant.units > 0
        assert run(worker, "work", page.path, 9, 100, 1, 4, 0).returncode == 5, "the slot is still taken"
        assert run(worker, "repair", page.path, 9, 0).returncode == 0
        assert page.ledger(9).seq == before.seq + 1


def test_slot_kept_over_exec_is_emptied_not_freed(worker: Path, page: Page) -> None:
    assert run(worker, "work", page.path, 1, 100, 3, 5, 18).returncode == -signal.SIGKILL
    owner = page.owner(1)
    assert run(worker, "reset", page.path, 1).returncode == 0
    assert (page.tenant.units, page.ledger(1).units) == (0, 0)
    assert page.owner(1) == owner != 0


# -- many real processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [2, 8, 64])
def test_racing_processes_keep_exact_totals(worker: Path, page: Page, processes: int) -> None:
    limit = 48 * processes // 2
    racing = [
        subprocess.Popen(
            [worker, "work", page.path, str(slot), str(limit), str(slot + 1), "3000", "0"], stdout=subprocess.PIPE
        )
        for slot in range(processes)
    ]
    held = []
    for process in racing:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        held.append(int(out))
    assert [page.ledger(slot).units for slot in range(processes)] == held
    assert page.tenant.units == sum(held) <= limit
    assert page.word(8) <= limit << 9, "the peak"


@pytest.mark.parametrize("processes", [2, 12])
def test_random_kills_lose_nothing(worker: Path, page: Page, processes: int) -> None:
    limit, kills = 32 * processes, 25
    chance = random.Random(processes)
    command = [str(worker), "work", str(page.path)]
    racing = {
        slot: subprocess.Popen([*command, str(slot), str(limit), str(slot), "0", "0"]) for slot in range(processes)
    }
    try:
        for kill in range(kills):
            slot = chance.randrange(processes)
            with pytest.raises(subprocess.TimeoutExpired):  # it runs, and is somewhere in the middle
                racing[slot].wait(chance.uniform(0.001, 0.02))
            racing[slot].kill()
            racing[slot].wait()
            assert run(worker, "repair", page.path, slot, chance.choice([0, 3])).returncode in (0, -signal.SIGKILL)
            assert run(worker, "repair", page.path, slot, 0).returncode == 0
            assert page.ledger(slot).units == 0
            racing[slot] = subprocess.Popen([*command, str(slot), str(limit), str(kill), "0", "0"])
    finally:
        for process in racing.values():
            process.kill()
            process.wait()
    for slot in racing:
        assert run(worker, "repair", page.path, slot, 0).returncode == 0
    assert page.tenant.units == page.total() == 0


def test_threads_of_one_process_are_clean_under_the_thread_sanitizer(tmp_path: Path, page: Page) -> None:
    program = compiled(PROGRAMS / "ledger_worker.c", tmp_path / "worker", "-fsanitize=thread")
    command = [str(program), "threads", str(page.path), "8", "5000", "200"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert page.tenant.units == page.total() == 0


# -- nonsense in the pages ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Build the ledger as a shared object."""
    path = compiled(NATIVE / "common" / "ledger.c", tmp_path_factory.mktemp("ledger") / "ledger.so", "-shared", "-fPIC")
    return ctypes.CDLL(str(path))


def test_invalid_page_contents_harm_no_other_process(library: ctypes.CDLL) -> None:
    guard = 4096
    chance = random.Random(1)
    for _ in range(3000):
        memory = ctypes.create_string_buffer(STATUS_BYTES + 2 * guard)
        start = ctypes.addressof(memory) + guard
        for at in (0, *(SLOTS_AT + slot * SLOT_BYTES + word * 8 for slot in range(4) for word in range(6))):
            value = chance.choice([0, 2**64 - 1, chance.getrandbits(64), chance.getrandbits(32)])
            ctypes.c_uint64.from_address(start + at).value = value
        slot = chance.choice([0, 1, 127, 128, 2**32 - 1])
        done = bool(library.gp_ledger_repair_slot(ctypes.c_void_p(start), ctypes.c_uint32(slot)))
        assert done == (slot < SLOTS)
        assert memory.raw[:guard] == memory.raw[-guard:] == bytes(guard)
        if done:
            assert ctypes.c_uint64.from_address(start + SLOTS_AT + slot * SLOT_BYTES).value == 0


def test_impossible_requests_are_refused(library: ctypes.CDLL) -> None:
    memory = ctypes.create_string_buffer(STATUS_BYTES)
    status = ctypes.c_void_p(ctypes.addressof(memory))

    def change(slot: int, delta: int, limit: int) -> bool:
        answer = library.gp_ledger_change(status, ctypes.c_uint32(slot), ctypes.c_int64(delta), ctypes.c_uint64(limit))
        return bool(answer & 0xFF)

    everything = 2**64 - 1
    assert not change(0, 2**63 - 1, everything)
    assert not change(128, 1, everything)
    assert change(0, 2**34 - 1, everything)
    assert not change(1, 1, everything), "a word cannot say more"
    assert change(0, -(2**62), 0), "giving back more than one has gives back what one has"
    assert int.from_bytes(memory.raw[:8], "little") >> 30 == 0
    assert not change(0, 1, 0)
    assert change(0, 10, 10)
    assert not change(1, 1, 10)
