"""Creates and destroys MIG instances through NVML, and remembers which ones are the pool's.

The functions, structures and error codes are those of nvml.h, chapter "Multi Instance GPU Management"
(https://docs.nvidia.com/deploy/nvml-api/group__nvmlMultiInstanceGPU.html), called through nvidia-ml-py. A GPU instance
with its memory comes first; it is usable after one compute instance with all its slices has been created in it. Both
calls need root. MIG mode is never switched, because that needs a reset of the card.

A durable record has what the pool created, and what it is about to create. It is written before each step, so that
after a crash only the pool's own instances are removed:

- a GPU instance without a compute instance, of the profile in the record and absent when the record was written;
- an instance whose number is in the record and that was never reported.

Instances do not survive a restart of the machine, so the record of another boot is void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu, NodeReport
from gpupool.domain.nodes.mig import MigCard, MigProfile
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import boot_id, read_json, write_json
from gpupool.node.inventory.fake_driver import EMULATED
from gpupool.node.inventory.mig import has_mig
from gpupool.node.inventory.queries import NvmlCode, Queries, as_text
from gpupool.node.ports import Inventory, Partitionable

_MAX_PROFILES = 64  # numbers to try; a driver ends the list with INVALID_ARGUMENT
_SHARED_ENGINES = 0  # NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
_PREFIX = "MIG "  # of the names of profiles


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance that the pool created: its UUID, its card, and its GPU instance with profile and memory slices.

    While it is being created, ``uuid`` is empty, ``number`` is -1 until it is known, and ``others`` are the numbers of
    the GPU instances of this profile that the card had before.
    """

    card: str
    profile: int
    number: int = -1
    start: int = -1
    uuid: str = ""
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """The content of the file; ``pending`` is the instance that is being created."""

    boot: str = ""
    instances: tuple[Instance, ...] = ()
    pending: Instance | None = None


@dataclass(frozen=True, slots=True)
class _Profile:
    """A profile of a card, with its id for NVML."""

    id: int
    shown: MigProfile


class _State(Enum):
    PRESENT = auto()
    HALF_REMOVED = auto()  # its compute instance is gone
    GONE = auto()


class MigInstances:
    """The MIG instances that the pool creates on this machine. All methods block, and are called from one thread.

    ``nvml`` is the NVML module, ``path`` the file of the record, ``boot`` the boot id.
    """

    def __init__(self, nvml: Any, path: Path, boot: str) -> None:
        self._nvml = nvml
        self._path = path
        data = read_json(path)
        self._record = (
            decode(InstanceRecord, data) if data is not None and data.get("boot") == boot else InstanceRecord(boot)
        )

    @property
    def created(self) -> frozenset[str]:
        """Return the UUIDs of the instances that the pool created."""
        return frozenset(instance.uuid for instance in self._record.instances)

    def cards(self) -> tuple[MigCard, ...]:
        """Return the cards in MIG mode, with their profiles and how many more instances of each fit."""
        found = (
            MigCard(uuid, index, model.removesuffix(EMULATED), tuple(each.shown for each in self._profiles(handle)))
            for index, uuid, model, handle in self._cards()
        )
        return tuple(card for card in found if card.profiles)

    def create(self, card: str, name: str) -> str:
        """Create an instance of a profile such as ``3g.40gb`` on a card, and return its UUID.

        Nothing is left if a step fails. Raises ``GpupoolError``: INVALID_REQUEST for an unknown card or profile,
        WRONG_STATE without room, FORBIDDEN without root, INTERNAL for other errors of the driver or the disk.
        """
        self.tidy()
        handle = next((found for _, uuid, _, found in self._cards() if uuid == card), None)
        if handle is None:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, f"{card[:80]} is not a card in MIG mode.", "See nvidia-smi.")
        profiles = {profile.shown.name: profile for profile in self._profiles(handle)}
        if name not in profiles:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"The card has no MIG profile '{name[:40]}'.",
                f"It has: {', '.join(profiles)}.",
            )
        with self._reported(f"create a MIG instance {name}"):
            others = tuple(number for number, _ in self._gpu_instances(handle, profiles[name].id))
            pending = Instance(card, profiles[name].id, others=others)
            self._save(replace(self._record, pending=pending))
            try:
                return self._create(handle, profiles[name], pending)
            except BaseException:
                self.tidy()
                raise

    def _create(self, handle: Any, profile: _Profile, pending: Instance) -> str:
        made = self._nvml.nvmlDeviceCreateGpuInstance(handle, profile.id)
        number = int(self._nvml.nvmlGpuInstanceGetInfo(made).id)
        pending = replace(pending, number=number, start=self._start_of(made))
        self._save(replace(self._record, pending=pending))
        whole = [found.id for found in self._compute_profiles(made) if found.sliceCount == profile.shown.slices]
        if whole:
            self._nvml.nvmlGpuInstanceCreateComputeInstance(made, whole[0])
        uuid = self._device_of(handle, pending.number)
        if not uuid:
            raise GpupoolError(ErrorCode.INTERNAL, "The driver does not list the new MIG instance.", "See nvidia-smi.")
        done = replace(pending, uuid=uuid, others=())
        self._save(replace(self._record, instances=(*self._record.instances, done), pending=None))
        return uuid

    def remove(self, uuid: str) -> None:
        """Destroy an instance that the pool created. Ignores one that is gone.

        Raises NOT_FOUND for another instance, WRONG_STATE while processes use it, FORBIDDEN, INTERNAL.
        """
        found = next((instance for instance in self._record.instances if instance.uuid == uuid), None)
        if found is None:
            raise GpupoolError(ErrorCode.NOT_FOUND, f"The pool did not create {uuid[:80]}.", "It is not changed.")
        with self._reported("destroy a MIG instance"):
            if self._state(found) is _State.PRESENT:
                device = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
                pids = [str(process.pid) for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)]
                if pids:
                    sentence = f"Processes use the MIG instance {uuid}: {', '.join(pids)}."
                    raise GpupoolError(ErrorCode.WRONG_STATE, sentence, "End them first.")
                self._destroy(self._card(found), found)
            self._drop(found)

    def tidy(self) -> None:
        """Destroy incomplete instances, and forget those that an administrator has destroyed."""
        steps: list[Callable[[], None]] = [partial(self._settle, instance) for instance in self._record.instances]
        for step in (self._undo, *steps):
            try:
                step()
            except (GpupoolError, self._nvml.NVMLError) as error:  # tried again at the next call
                log_event("MIG instance not tidied", error=str(error))

    def _undo(self) -> None:
        """Destroy what an interrupted ``create`` has left."""
        pending = self._record.pending
        if pending is None:
            return
        for number, made in self._present(pending):
            own = number == pending.number and self._start_of(made) == pending.start
            if pending.number < 0 and number not in pending.others:
                own = not self._device_of(self._card(pending), number)
            if own:
                log_event("incomplete MIG instance destroyed", card=pending.card, number=number)
                self._destroy(self._card(pending), replace(pending, number=number))
        self._save(replace(self._record, pending=None))

    def _settle(self, instance: Instance) -> None:
        """Complete an interrupted ``remove``; forget an instance that is gone."""
        state = self._state(instance)
        if state is _State.HALF_REMOVED:
            self._destroy(self._card(instance), instance)
        if state is not _State.PRESENT:
            self._drop(instance)

    def _state(self, instance: Instance) -> _State:
        """Return whether the driver still has an instance as it was created; another may have its number."""
        made = dict(self._present(instance)).get(instance.number)
        if made is None or self._start_of(made) != instance.start:
            return _State.GONE
        uuid = self._device_of(self._card(instance), instance.number)
        if not uuid:
            return _State.HALF_REMOVED
        return _State.PRESENT if uuid == instance.uuid else _State.GONE

    def _present(self, instance: Instance) -> list[tuple[int, Any]]:
        """Return the GPU instances of the profile on the card; none if the card is gone, or MIG mode is off."""
        try:
            return self._gpu_instances(self._card(instance), instance.profile)
        except self._nvml.NVMLError as error:
            if error.value in {NvmlCode.NOT_FOUND, NvmlCode.NOT_SUPPORTED}:
                return []
            raise

    # -- NVML --------------------------------------------------------------------------------------------------------

    def _cards(self) -> Iterator[tuple[int, str, str, Any]]:
        """Yield index, UUID, name and handle of each card in MIG mode."""
        for index in range(self._queries("NVML").ask(0, "nvmlDeviceGetCount")):
            queries = self._queries(f"GPU {index}")
            handle = queries.ask(None, "nvmlDeviceGetHandleByIndex", index)
            if handle is not None and has_mig(queries, handle):
                names = [as_text(queries.ask("", f"nvmlDeviceGet{what}", handle)) for what in ("UUID", "Name")]
                yield index, names[0], names[1], handle

    def _queries(self, label: str) -> Queries:
        return Queries(self._nvml, label, [])

    def _card(self, instance: Instance) -> Any:
        return self._nvml.nvmlDeviceGetHandleByUUID(instance.card)

    def _profiles(self, handle: Any) -> list[_Profile]:
        """Return the profiles of a card; their room needs root, without it the next step reports the error."""
        found = []
        for number in range(_MAX_PROFILES):
            try:
                info = self._nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
            except (self._nvml.NVMLError, AttributeError) as error:  # an older nvidia-ml-py lacks the function
                if getattr(error, "value", None) == NvmlCode.NOT_SUPPORTED:
                    continue  # a profile of other cards
                break
            most = int(info.instanceCount)
            free = self._queries("card").ask(most, "nvmlDeviceGetGpuInstanceRemainingCapacity", handle, info.id)
            name = as_text(info.name).removeprefix(_PREFIX)
            shown = MigProfile(name, int(info.sliceCount), int(info.memorySizeMB), most, int(free))
            found.append(_Profile(int(info.id), shown))
        return found

    def _gpu_instances(self, handle: Any, profile: int) -> list[tuple[int, Any]]:
        """Return number and handle of the GPU instances of a profile."""
        most = max((found.shown.most for found in self._profiles(handle) if found.id == profile), default=0)
        array, count = (self._nvml.c_nvmlGpuInstance_t * most)(), c_uint(most)
        self._nvml.nvmlDeviceGetGpuInstances(handle, profile, array, byref(count))
        return [(int(self._nvml.nvmlGpuInstanceGetInfo(made).id), made) for made in array[: count.value]]

    def _start_of(self, made: Any) -> int:
        """Return the first memory slice of a GPU instance."""
        return int(self._nvml.nvmlGpuInstanceGetInfo(made).placement.start)

    def _device_of(self, handle: Any, number: int) -> str:
        """Return the UUID of the device of a GPU instance; empty without a compute instance."""
        for place in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                device = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            except self._nvml.NVMLError as error:
                if error.value != NvmlCode.NOT_FOUND:
                    raise
                continue
            if self._nvml.nvmlDeviceGetGpuInstanceId(device) == number:
                return as_text(self._nvml.nvmlDeviceGetUUID(device))
        return ""

    def _compute_profiles(self, made: Any) -> Iterator[Any]:
        """Yield the profiles of compute instances in a GPU instance."""
        for number in range(_MAX_PROFILES):
            try:
                yield self._nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(made, number, _SHARED_ENGINES)
            except self._nvml.NVMLError as error:
                if error.value != NvmlCode.NOT_SUPPORTED:
                    return

    def _destroy(self, handle: Any, instance: Instance) -> None:
        """Destroy a GPU instance with its compute instances; NVML refuses if processes use them."""
        made = self._nvml.nvmlDeviceGetGpuInstanceById(handle, instance.number)
        for profile in list(self._compute_profiles(made)):
            array, count = (self._nvml.c_nvmlComputeInstance_t * profile.instanceCount)(), c_uint(profile.instanceCount)
            self._nvml.nvmlGpuInstanceGetComputeInstances(made, profile.id, array, byref(count))
            for compute in array[: count.value]:
                self._nvml.nvmlComputeInstanceDestroy(compute)
        self._nvml.nvmlGpuInstanceDestroy(made)

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Raise ``GpupoolError`` with a cause that users understand instead of an error of NVML."""
        try:
            yield
        except self._nvml.NVMLError as error:
            cause = {
                NvmlCode.NO_PERMISSION: (
                    ErrorCode.FORBIDDEN,
                    "the driver allows it only to root",
                    "Run the agent as root.",
                ),
                NvmlCode.INSUFFICIENT_RESOURCES: (
                    ErrorCode.WRONG_STATE,
                    "the card has no room for it",
                    "Wait for room.",
                ),
                NvmlCode.IN_USE: (ErrorCode.WRONG_STATE, "processes use it", "End them first."),
            }
            other = (ErrorCode.INTERNAL, f"the driver reports: {error}", "See nvidia-smi on the node.")
            code, why, hint = cause.get(error.value, other)
            raise GpupoolError(code, f"Cannot {what}: {why}.", hint) from error

    # -- the record --------------------------------------------------------------------------------------------------

    def _drop(self, instance: Instance) -> None:
        left = tuple(other for other in self._record.instances if other is not instance)
        self._save(replace(self._record, instances=left))

    def _save(self, record: InstanceRecord) -> None:
        try:
            write_json(self._path, asdict(record), durable=True)
        except OSError as error:
            raise GpupoolError(
                ErrorCode.INTERNAL,
                f"The node cannot record a MIG instance: {error.strerror}.",
                f"Free space in {self._path.parent} on the node.",
            ) from error
        self._record = record


class MigCreation:
    """The instances of an agent's node; without cards in MIG mode it changes no report.

    ``inventory`` may use ``run_folder``, for programs of other users too if ``shared``. ``record`` is the file of the
    record. All methods block, and are called from one thread; the first one destroys incomplete instances.
    """

    def __init__(self, inventory: Inventory, record: Path, run_folder: Path, *, shared: bool) -> None:
        self._inventory = inventory
        self._record = record
        self._run_folder = run_folder
        self._shared = shared
        self._instances: MigInstances | None = None

    def scan(self) -> NodeReport:
        """Return the inventory's report with the cards in MIG mode."""
        instances = self._open()
        if instances is None:
            return self._inventory.report()
        instances.tidy()
        report = self._inventory.report()
        return replace(report, gpus=_marked(report.gpus, instances), mig_cards=instances.cards())

    def gpus(self, pool_pids: frozenset[int]) -> tuple[Gpu, ...]:
        """Return the inventory's GPUs, with a mark on the instances that the pool created."""
        return _marked(self._inventory.gpus(pool_pids), self._open())

    def create(self, card: str, profile: str) -> None:
        """Create an instance. Raises as ``MigInstances.create``, and UNSUPPORTED."""
        self._require().create(card, profile)

    def remove(self, uuid: str) -> None:
        """Destroy an instance that the pool created. Raises as ``MigInstances.remove``, and UNSUPPORTED."""
        self._require().remove(uuid)

    def _open(self) -> MigInstances | None:
        inventory = self._inventory
        if self._instances is None and isinstance(inventory, Partitionable):
            try:
                nvml = inventory.nvml(self._run_folder, shared=self._shared)
            except OSError as error:
                log_event("MIG instances not found", error=str(error))
                return None
            if nvml is not None:
                self._instances = MigInstances(nvml, self._record, boot_id())
                self._instances.tidy()
        return self._instances

    def _require(self) -> MigInstances:
        instances = self._open()
        if instances is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, "No card of this node is in MIG mode.", "See nvidia-smi.")
        return instances


def _marked(gpus: tuple[Gpu, ...], instances: MigInstances | None) -> tuple[Gpu, ...]:
    created = frozenset() if instances is None else instances.created
    return tuple(replace(gpu, on_demand=True) if gpu.uuid in created else gpu for gpu in gpus)
