"""The checks of one GPU: its state in NVML, and the child processes that use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpupool.domain.nodes.gpu import XID_DEGRADED, XID_OF_PROGRAMS
from gpupool.verify.children import TIMEOUT_S, ChildError, ask_child, run_check
from gpupool.verify.nvml import GONE, SOFTWARE_THERMAL, Device, NvmlError
from gpupool.verify.results import Check, CheckOptions, CheckOutcome

CUDA_CHECKS = ("compute", "memory", "copies")
THOROUGH_LEVEL, BURN_LEVEL = 2, 3
_EMULATED = "(emulated)"  # the simulated NVML adds it to the model


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU to check; ``device`` is None if NVML does not find it, and ``lost`` says how."""

    index: int
    uuid: str
    model: str
    device: Device | None
    lost: str = ""

    @property
    def emulated(self) -> bool:
        """Return whether the GPU is simulated."""
        return self.model.endswith(_EMULATED)


def lost_check(reason: str) -> Check:
    """Return the check of a GPU that has disappeared."""
    return Check("present", CheckOutcome.FAIL, f"the GPU has disappeared: {reason}")


def check_card(card: Card, others: list[str], options: CheckOptions) -> list[Check]:
    """Return all checks of one GPU; ``others`` are the UUIDs of the other GPUs of the node."""
    if card.device is None:
        return [lost_check(card.lost)]
    checks = [Check("present")]
    options = replace(options, emulated=card.emulated)
    for name in CUDA_CHECKS:
        checks += run_check(name, [card.uuid], options)
    if options.in_slice:
        checks += run_check("slice-memory", [card.uuid], options)
    if options.level >= THOROUGH_LEVEL:
        checks += run_check("cublas", [card.uuid], options)
        checks += run_check("peer-copies", [card.uuid, *others], options)
    if options.level >= BURN_LEVEL:
        checks += run_check("burn", [card.uuid], options, TIMEOUT_S + options.burn_s)
    try:
        checks += _state(card.device)
    except NvmlError as error:
        checks.append(_no_answer(error))
    return checks


def _no_answer(error: NvmlError) -> Check:
    if error.code in GONE:
        return lost_check(str(error))
    return Check("present", CheckOutcome.FAIL, f"the GPU does not answer: {error}")


def _state(device: Device) -> Iterator[Check]:
    """Check the state after the work, when link and clocks have their full speed."""
    yield _link(device)
    yield _ecc(device)
    yield _clocks(device)
    persistence = device.number("nvmlDeviceGetPersistenceMode")
    note = "persistence mode is off: programs start slowly" if persistence == 0 else ""
    yield _unknown("persistence") if persistence is None else Check("persistence", note=note)


def _unknown(name: str) -> Check:
    return Check(name, CheckOutcome.SKIPPED, "NVML does not report it for this GPU")


def _link(device: Device) -> Check:
    width, most = (device.number(f"nvmlDeviceGet{kind}PcieLinkWidth") for kind in ("Curr", "Max"))
    generation, newest = (device.number(f"nvmlDeviceGet{kind}PcieLinkGeneration") for kind in ("Curr", "Max"))
    if not width or not most:
        return _unknown("link")
    values = {"lanes": float(width), "max_lanes": float(most)}
    if generation and newest:
        values |= {"generation": float(generation), "max_generation": float(newest)}
    if width < most:
        return Check("link", CheckOutcome.FAIL, f"the PCIe link has {width} of {most} lanes: reseat the card", values)
    return Check("link", values=values)


def _ecc(device: Device) -> Check:
    enabled = device.ecc_enabled
    if enabled is None:
        return Check("ecc", CheckOutcome.SKIPPED, "the GPU has no ECC")
    errors = device.uncorrected_errors or 0
    pending, failed = device.remapping
    values = {"uncorrected_errors": float(errors)}
    if errors:
        return Check(
            "ecc", CheckOutcome.FAIL, f"{errors} uncorrected memory errors since the driver was loaded", values
        )
    if failed:
        return Check("ecc", CheckOutcome.FAIL, "a memory row could not be remapped: the card needs repair", values)
    if pending:
        return Check("ecc", CheckOutcome.SUSPECT, "a memory row waits to be remapped: reset the card", values)
    return Check("ecc", note="" if enabled else "ECC is off", values=values)


def _clocks(device: Device) -> Check:
    named = {
        "sm_clock_mhz": device.sm_clock_mhz,
        "temperature_c": device.temperature_c,
        "power_w": None if device.power_mw is None else device.power_mw / 1000,
    }
    values = {name: float(value) for name, value in named.items() if value is not None}
    reasons = device.slowdowns
    if reasons is None:
        return Check("throttling", CheckOutcome.SKIPPED, "NVML does not report why clocks are lowered", values)
    if reasons:
        outcome = CheckOutcome.SUSPECT if reasons == [SOFTWARE_THERMAL] else CheckOutcome.FAIL
        return Check("throttling", outcome, f"the clocks are lowered: {', '.join(reasons)}", values)
    return Check("throttling", values=values)


def xid_check(xids: Iterable[int]) -> Check:
    """Return the check of the XIDs that a GPU reported during the other checks."""
    bad = [xid for xid in dict.fromkeys(xids) if xid not in XID_OF_PROGRAMS]
    if not bad:
        return Check("xid")
    outcome = CheckOutcome.SUSPECT if XID_DEGRADED.issuperset(bad) else CheckOutcome.FAIL
    return Check("xid", outcome, f"the GPU reported XID {', '.join(map(str, bad))} during the checks")


def check_peers(cards: list[Card]) -> dict[str, Check]:
    """Check access between the GPUs of a node; return one check for each, by UUID.

    Some models have no peer access at all. So a GPU fails if it reaches no other, although others reach each other.
    """
    present = [card for card in cards if card.device is not None]
    if len(present) < 2:
        return {card.uuid: Check("peers", CheckOutcome.SKIPPED, "no other GPU was checked") for card in present}
    try:
        pairs = ask_child("peers", [card.uuid for card in present], CheckOptions(emulated=present[0].emulated))
    except ChildError as error:
        return {card.uuid: Check("peers", CheckOutcome.FAIL, str(error)) for card in present}
    access = {(str(one), str(other)): bool(can) for one, other, can in pairs}
    return {card.uuid: _peer_check(_digits(card.uuid), access) for card in present}


def check_nccl(cards: list[Card], options: CheckOptions) -> list[Check]:
    """Return from level 2 the check of NCCL, which uses all GPUs that are present together."""
    present = [card for card in cards if card.device is not None]
    if options.level < THOROUGH_LEVEL or not present:
        return []
    return run_check("nccl", [card.uuid for card in present], replace(options, emulated=present[0].emulated))


def _digits(uuid: str) -> str:
    return uuid.removeprefix("MIG-").removeprefix("GPU-").removeprefix("EMULATED-").replace("-", "").lower()


def _peer_check(name: str, access: dict[tuple[str, str], bool]) -> Check:
    own = [can for pair, can in access.items() if name in pair]
    if all(own):
        return Check("peers")
    if not any(access.values()):
        return Check("peers", CheckOutcome.SKIPPED, "these GPUs have no peer access to each other")
    if not any(own):
        return Check("peers", CheckOutcome.FAIL, "no peer access to any other GPU, while others have it")
    return Check("peers", CheckOutcome.OK, f"peer access to {sum(own) // 2} of {len(own) // 2} GPUs")
