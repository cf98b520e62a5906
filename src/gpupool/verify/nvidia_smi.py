"""``nvidia-smi`` for emulated GPUs: it shows what NVML reports, which is the slice in a slice.

Programs on emulated GPUs find it in their PATH (``node/sharing/emulation.py``). It has the common options and formats
of NVIDIA's program, and says that the GPUs are emulated: in the table, and in the names of the GPUs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import Structure, byref, c_int, c_uint, c_ulonglong, create_string_buffer
from pathlib import Path

if __name__ == "__main__":  # the node runs this file with a Python that need not know the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpupool.verify.nvml import Device, Nvml, NvmlError

# The exit statuses of NVIDIA's program.
INVALID_ARGUMENT, NO_DEVICE, NO_DRIVER = 2, 6, 9
MIB = 1 << 20
MISSING = "[N/A]"
MAX_PROCESSES = 1024
_NAME_BYTES = 1024
_TITLE = "NVIDIA-SMI (emulated)"
USAGE = """\
Usage: nvidia-smi [-i ID] [-l SECONDS]                        the table
       nvidia-smi -L                                          the GPUs
       nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]
       nvidia-smi --query-compute-apps=FIELDS --format=csv[,noheader][,nounits]
       nvidia-smi --help-query-gpu | --help-query-compute-apps

This nvidia-smi is part of gpupool. It shows emulated GPUs; in a slice, the memory of the slice.
"""


class _Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Process(Structure):
    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class SmiCard:
    """One GPU with the values that are shown; an unknown value is ``[N/A]``."""

    def __init__(self, nvml: Nvml, device: Device, count: int) -> None:
        self.nvml = nvml
        self.device = device
        self.count = count

    def memory(self) -> _Memory:
        """Return its memory; in a slice, that of the slice."""
        memory = _Memory()
        self.device.query("nvmlDeviceGetMemoryInfo", byref(memory))
        return memory

    def utilization(self) -> _Utilization | None:
        """Return the percentages of time in which kernels ran and memory was used."""
        found = _Utilization()
        return found if self.device.query("nvmlDeviceGetUtilizationRates", byref(found)) else None

    def number(self, function: str, *arguments: object, scale: int = 1, digits: int = 0) -> str:
        """Return the number of a function of NVML, as text."""
        value = self.device.number(function, *arguments)
        return MISSING if value is None else f"{value / scale:.{digits}f}"

    def text(self, function: str) -> str:
        """Return the text of a function of NVML."""
        buffer = create_string_buffer(96)
        found = self.device.query(function, buffer, c_uint(96))
        return buffer.value.decode(errors="replace") if found else MISSING

    def bus_id(self) -> str:
        """Return the address on the PCI bus."""
        buffer = create_string_buffer(256)  # nvmlPciInfo_t begins with the short address
        if not self.device.query("nvmlDeviceGetPciInfo_v3", buffer):
            return MISSING
        return f"0000{buffer.value.decode(errors='replace')}"

    def capability(self) -> str:
        """Return the compute capability."""
        major, minor = c_int(), c_int()
        found = self.device.query("nvmlDeviceGetCudaComputeCapability", byref(major), byref(minor))
        return f"{major.value}.{minor.value}" if found else MISSING

    def processes(self) -> list[tuple[int, int | None]]:
        """Return the processes with their bytes (None: not known)."""
        number, found = c_uint(MAX_PROCESSES), (_Process * MAX_PROCESSES)()
        if not self.device.query("nvmlDeviceGetComputeRunningProcesses_v3", byref(number), found):
            return []
        unknown = (1 << 64) - 1
        return [(one.pid, None if one.used == unknown else one.used) for one in found[: number.value]]

    def process_name(self, pid: int) -> str:
        """Return the program of a process."""
        buffer = create_string_buffer(_NAME_BYTES)
        try:
            self.nvml.call("nvmlSystemGetProcessName", c_uint(pid), buffer, c_uint(_NAME_BYTES))
        except NvmlError:
            return MISSING
        return buffer.value.decode(errors="replace")


Values = dict[str, tuple[str, Callable[[SmiCard], str]]]


def _mib(value: int) -> str:
    return str(value // MIB)


def _percent(card: SmiCard, what: str) -> str:
    found = card.utilization()
    return MISSING if found is None else str(getattr(found, what))


def _switch(card: SmiCard, function: str) -> str:
    value = card.device.number(function)
    return MISSING if value is None else ("Disabled", "Enabled")[min(value, 1)]


def _ecc(card: SmiCard) -> str:
    enabled = card.device.ecc_enabled
    return MISSING if enabled is None else "Enabled" if enabled else "Disabled"


def _uncorrected(card: SmiCard) -> str:
    errors = card.device.uncorrected_errors
    return MISSING if not card.device.ecc_enabled or errors is None else str(errors)


def _driver(card: SmiCard) -> str:
    return card.nvml.text("nvmlSystemGetDriverVersion")


def _state(card: SmiCard) -> str:
    value = card.device.number("nvmlDeviceGetPerformanceState")
    return MISSING if value is None else f"P{value}"


# By the name of a field: its unit (empty: none), and its value.
GPU_FIELDS: Values = {
    "timestamp": ("", lambda _: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "driver_version": ("", _driver),
    "count": ("", lambda card: str(card.count)),
    "name": ("", lambda card: card.device.model),
    "index": ("", lambda card: str(card.device.index)),
    "uuid": ("", lambda card: card.device.uuid),
    "serial": ("", lambda card: card.text("nvmlDeviceGetSerial")),
    "pci.bus_id": ("", SmiCard.bus_id),
    "vbios_version": ("", lambda card: card.text("nvmlDeviceGetVbiosVersion")),
    "compute_cap": ("", SmiCard.capability),
    "compute_mode": ("", lambda _: "Default"),
    "persistence_mode": ("", lambda card: _switch(card, "nvmlDeviceGetPersistenceMode")),
    "display_active": ("", lambda card: _switch(card, "nvmlDeviceGetDisplayActive")),
    "display_mode": ("", lambda card: _switch(card, "nvmlDeviceGetDisplayMode")),
    "pstate": ("", _state),
    "fan.speed": ("%", lambda card: card.number("nvmlDeviceGetFanSpeed")),
    "memory.total": ("MiB", lambda card: _mib(card.memory().total)),
    "memory.used": ("MiB", lambda card: _mib(card.memory().used)),
    "memory.free": ("MiB", lambda card: _mib(card.memory().free)),
    "utilization.gpu": ("%", lambda card: _percent(card, "gpu")),
    "utilization.memory": ("%", lambda card: _percent(card, "memory")),
    "temperature.gpu": ("", lambda card: card.number("nvmlDeviceGetTemperature", c_uint(0))),
    "power.draw": ("W", lambda card: card.number("nvmlDeviceGetPowerUsage", scale=1000, digits=2)),
    "power.limit": ("W", lambda card: card.number("nvmlDeviceGetEnforcedPowerLimit", scale=1000, digits=2)),
    "clocks.gr": ("MHz", lambda card: card.number("nvmlDeviceGetClockInfo", c_uint(0))),
    "clocks.sm": ("MHz", lambda card: card.number("nvmlDeviceGetClockInfo", c_uint(1))),
    "clocks.mem": ("MHz", lambda card: card.number("nvmlDeviceGetClockInfo", c_uint(2))),
    "ecc.mode.current": ("", _ecc),
    "ecc.errors.uncorrected.volatile.total": ("", _uncorrected),
}
ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "clocks.current.graphics": "clocks.gr",
    "clocks.current.sm": "clocks.sm",
    "clocks.current.memory": "clocks.mem",
}
APP_FIELDS = ("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid", "pid", "process_name", "used_memory")
APP_ALIASES = {"name": "process_name", "used_gpu_memory": "used_memory"}


class UsageError(Exception):
    """The arguments are wrong; the text says why."""


class Arguments:
    """The read command line. ``fields`` of a query are checked names; ``gpu`` selects one GPU."""

    def __init__(self, words: Sequence[str]) -> None:
        self.mode = "table"
        self.fields: list[str] = []
        self.formats: list[str] = []
        self.gpu = ""
        self.interval_s = 0.0
        rest = list(words)
        while rest:
            self._read(rest.pop(0), rest)
        if self.mode in {"gpu", "apps"} and "csv" not in self.formats:
            raise UsageError("No format is given. Add --format=csv.")

    def _read(self, word: str, rest: list[str]) -> None:
        flag, equals, value = word.partition("=")
        plain = {"-L": "list", "--list-gpus": "list", "-h": "help", "--help": "help", "--version": "version"}
        plain |= {"--help-query-gpu": "fields", "--help-query-compute-apps": "app-fields"}
        if word in plain:
            self.mode = plain[word]
            return
        if not equals:
            if not rest or flag not in {
                "-i",
                "--id",
                "-l",
                "--loop",
                "--format",
                "--query-gpu",
                "--query-compute-apps",
            }:
                raise UsageError(f"Option {flag[:40]} is not recognized, or has no value. See 'nvidia-smi -h'.")
            value = rest.pop(0)
        if flag in {"-i", "--id"}:
            self.gpu = value
        elif flag in {"-l", "--loop"}:
            self.interval_s = _seconds(value)
        elif flag == "--format":
            self.formats = _listed(value, ("csv", "noheader", "nounits"), {}, "format")
        elif flag == "--query-gpu":
            self.mode, self.fields = "gpu", _listed(value, tuple(GPU_FIELDS), ALIASES, "field to query")
        elif flag == "--query-compute-apps":
            self.mode, self.fields = "apps", _listed(value, APP_FIELDS, APP_ALIASES, "field to query")
        else:
            raise UsageError(f"Option {flag[:40]} is not recognized. See 'nvidia-smi -h'.")


def _seconds(text: str) -> float:
    if not text.isdecimal() or not 0 < int(text[:9]) <= 86400:
        raise UsageError(f"'{text[:20]}' is not a number of seconds from 1 to 86400.")
    return float(text)


def _listed(text: str, known: Sequence[str], aliases: dict[str, str], what: str) -> list[str]:
    """Return the names of a list separated by commas. Raises ``UsageError`` for an unknown one."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if aliases.get(name, name) not in known:
            raise UsageError(f'Field "{name[:40]}" is not a valid {what}.')
    return names


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main(words: Sequence[str] | None = None) -> int:
    """Print what the arguments ask for and return the exit status."""
    try:
        arguments = Arguments(sys.argv[1:] if words is None else words)
    except UsageError as error:
        _say(str(error))
        return INVALID_ARGUMENT
    texts = {
        "help": USAGE,
        "fields": "\n".join([*GPU_FIELDS, *ALIASES]) + "\n",
        "app-fields": "\n".join([*APP_FIELDS, *APP_ALIASES]) + "\n",
    }
    if arguments.mode in texts:
        sys.stdout.write(texts[arguments.mode])
        return 0
    try:
        nvml = Nvml()
    except (OSError, NvmlError):
        _say("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver (emulated).")
        return NO_DRIVER
    while True:
        status = _show(nvml, arguments)
        if status or not arguments.interval_s:
            return status
        sys.stdout.flush()
        time.sleep(arguments.interval_s)


def _show(nvml: Nvml, arguments: Arguments) -> int:
    cards = [SmiCard(nvml, nvml.device(index), nvml.count) for index in range(nvml.count)]
    if arguments.gpu:
        wanted = arguments.gpu.split(",")
        cards = [card for card in cards if {str(card.device.index), card.device.uuid, card.bus_id()} & set(wanted)]
    if not cards:
        _say("No devices were found")
        return NO_DEVICE
    shown = {"list": _gpu_lines, "gpu": _query_lines, "apps": _app_lines, "version": _version_lines}
    for line in shown.get(arguments.mode, _table_lines)(cards, arguments):
        _say(line)
    return 0


def _gpu_lines(cards: Sequence[SmiCard], _: Arguments) -> Iterator[str]:
    for card in cards:
        yield f"GPU {card.device.index}: {card.device.model} (UUID: {card.device.uuid})"


def _version_lines(cards: Sequence[SmiCard], _: Arguments) -> Iterator[str]:
    yield "NVIDIA-SMI version  : emulated by gpupool"
    yield f"DRIVER version      : {_driver(cards[0])}"
    yield f"CUDA Version        : {_cuda(cards[0].nvml)}"


def _query_lines(cards: Sequence[SmiCard], arguments: Arguments) -> Iterator[str]:
    fields = [(name, *GPU_FIELDS[ALIASES.get(name, name)]) for name in arguments.fields]
    if "noheader" not in arguments.formats:
        yield ", ".join(f"{name} [{unit}]" if unit else name for name, unit, _ in fields)
    for card in cards:
        yield ", ".join(_with_unit(value(card), unit, arguments) for _, unit, value in fields)


def _app_lines(cards: Sequence[SmiCard], arguments: Arguments) -> Iterator[str]:
    names = [APP_ALIASES.get(name, name) for name in arguments.fields]
    if "noheader" not in arguments.formats:
        shown = zip(arguments.fields, names, strict=True)
        yield ", ".join(f"{given} [MiB]" if name == "used_memory" else given for given, name in shown)
    for card in cards:
        for pid, used in card.processes():
            own = {"pid": str(pid), "process_name": card.process_name(pid)}
            own["used_memory"] = _with_unit(MISSING if used is None else _mib(used), "MiB", arguments)
            yield ", ".join(
                own[name] if name in own else GPU_FIELDS[ALIASES.get(name, name)][1](card) for name in names
            )


def _with_unit(value: str, unit: str, arguments: Arguments) -> str:
    return f"{value} {unit}" if unit and value != MISSING and "nounits" not in arguments.formats else value


def _cuda(nvml: Nvml) -> str:
    version = c_int()
    nvml.call("nvmlSystemGetCudaDriverVersion_v2", byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _table_lines(cards: Sequence[SmiCard], _: Arguments) -> Iterator[str]:
    def value(card: SmiCard, name: str) -> str:
        unit, read = GPU_FIELDS[name]
        text = read(card)
        return "N/A" if text == MISSING else f"{text}{unit}"

    rule = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    yield time.strftime("%a %b %e %H:%M:%S %Y")
    yield "+" + "-" * 89 + "+"
    yield f"| {f'{_TITLE}   Driver Version: {_driver(cards[0])}   CUDA Version: {_cuda(cards[0].nvml)}':<88}|"
    yield rule
    yield f"| {'GPU  Name':<22}{'Persistence-M':>17} | {'Bus-Id          Disp.A':<22} | {'Volatile Uncorr. ECC':>20} |"
    yield f"| {'Fan  Temp   Perf     Pwr:Usage/Cap':<39} | {'Memory-Usage':>22} | {'GPU-Util  Compute M.':>20} |"
    yield rule.replace("-", "=")
    for card in cards:
        name = f"{value(card, 'index'):>3}  {value(card, 'name')[:32]}"
        persistence = {"Enabled": "On", "Disabled": "Off"}.get(value(card, "persistence_mode"), "N/A")
        bus, errors = f"{value(card, 'pci.bus_id'):<18}{'Off':>4}", value(card, "ecc.errors.uncorrected.volatile.total")
        yield f"| {name:<35}{persistence:>4} | {bus} | {errors:>20} |"
        power = f"{value(card, 'power.draw')} / {value(card, 'power.limit')}"
        first = f"{value(card, 'fan.speed'):>3}  {value(card, 'temperature.gpu'):>3}C   {value(card, 'pstate'):>3}"
        memory = f"{value(card, 'memory.used')} / {value(card, 'memory.total')}"
        yield f"| {first:<17}{power:>22} | {memory:>22} | {value(card, 'utilization.gpu'):>8}  {'Default':>10} |"
    yield rule
    yield ""
    yield from _process_lines(cards)


def _process_lines(cards: Sequence[SmiCard]) -> Iterator[str]:
    rule = "+" + "-" * 89 + "+"
    yield rule
    yield f"| {'Processes (of emulated GPUs):':<87} |"
    yield f"| {'GPU':>4}  {'PID':>10}  {'Type':<4}  {'Process name':<46}{'GPU Memory':>17} |"
    yield rule.replace("-", "=")
    found = [(card, pid, used) for card in cards for pid, used in card.processes()]
    for card, pid, used in found:
        memory = "N/A" if used is None else f"{_mib(used)}MiB"
        yield f"| {card.device.index:>4}  {pid:>10}  {'C':<4}  {card.process_name(pid)[-45:]:<46}{memory:>17} |"
    if not found:
        yield f"| {'No running processes found':<87} |"
    yield rule


__all__ = ["Arguments", "UsageError", "main"]

if __name__ == "__main__":
    sys.exit(main())
