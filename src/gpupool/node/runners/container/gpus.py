"""The GPUs of a program inside its container: devices, driver libraries, and the files of its slice.

A container gets only the device nodes of its own GPUs, for whole GPUs and slices alike. They are named by CDI if the
machine has its description (``nvidia-ctk cdi generate``). Otherwise each node is added, with the driver's libraries.
Files that the sharing mode named in variables (preloaded libraries, lease pages, a fake driver) are mounted below the
pool's folder.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host import native
from gpupool.node.host.mounts import Bind
from gpupool.node.host.native import Product
from gpupool.node.host.records import StartRequest
from gpupool.node.runners.container.paths import ContainerPaths
from gpupool.node.runners.container.spec import Mount
from gpupool.node.sharing.drivers import IMAGES_FOLDER, find_drivers
from gpupool.node.sharing.preload import LINKS

CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
CDI_KIND = "nvidia.com/gpu"
_PROC = Path("/proc/driver/nvidia/gpus")
_COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_LIBRARIES = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-gpucomp")
_TOOLS = ("/usr/bin/nvidia-smi",)


@dataclass(frozen=True, slots=True)
class GpuParts:
    """Options of ``run``, mounts and variables."""

    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] | None = None


def gpu_parts(request: StartRequest, run_folder: Path) -> GpuParts:
    """Return everything for a program with the variables and binds of its sharing mode. Reads files."""
    spec = request.spec
    mounts = (*_of_mode(spec, request.added_env, ContainerPaths(run_folder)), *_added(request.binds))
    if not spec.gpus or spec.emulated:
        return GpuParts(mounts=mounts)
    uuids = [share.gpu_uuid for share in spec.gpus]
    named = cdi_names(uuids)
    if named is not None:
        return GpuParts(tuple(word for name in named for word in ("--device", name)), mounts)
    nodes = [*_nodes(uuids), *(node for node in _COMMON if Path(node).exists())]
    devices = tuple(word for node in nodes for word in ("--device", node))
    env = {} if "LD_LIBRARY_PATH" in spec.env else {"LD_LIBRARY_PATH": IMAGES_FOLDER}
    return GpuParts(devices, tuple({m.target: m for m in (*_driver(request.binds), *mounts)}.values()), env)


# -- the sharing mode ------------------------------------------------------------------------------------------------


def _of_mode(spec: ProcessSpec, added_env: Mapping[str, str], paths: ContainerPaths) -> Iterator[Mount]:
    """Yield mounts of the pool's own files that the variables name."""
    texts = [text for value in added_env.values() for text in value.split(":")]
    if spec.emulated and spec.gpus and not native.missing():
        fakes = (Product.FAKE_CUDA, Product.FAKE_NVML)
        texts += [str(path) for fake in fakes for path in (fake.path, paths.run_folder / LINKS / fake)]
    for text in dict.fromkeys(texts):
        if (inside := paths.inside(text)) is not None and Path(text).exists():
            yield Mount(os.path.realpath(text), inside, read_only=not _written(text))


def _written(path: str) -> bool:
    """Return True if programs write to the path (lease pages, pipes of a server); file modes set the details."""
    return Path(path).is_dir()


def _added(binds: Iterable[Bind]) -> Iterator[Mount]:
    """Yield mounts of what the share libraries need if they are loaded without variables."""
    for each in binds:
        if each.added or each.target.startswith(f"{IMAGES_FOLDER}/"):
            yield Mount(os.path.realpath(each.source), each.target, read_only=not _written(each.source))


# -- devices ---------------------------------------------------------------------------------------------------------


def cdi_names(uuids: Iterable[str]) -> list[str] | None:
    """Return the CDI names of these GPUs; None if CDI does not know all of them.

    A description is YAML or JSON. A name is searched as a word, in the forms in which both write it.
    """
    texts = list(_cdi_texts())
    numbers = {uuid: number for number, uuid in enumerate(_uuids_in_order())}
    found = []
    for uuid in uuids:
        candidates = [uuid, *([str(numbers[uuid])] if uuid in numbers else [])]
        name = next((c for c in candidates if any(_names(text, c) for text in texts)), None)
        if name is None:
            return None
        found.append(f"{CDI_KIND}={name}")
    return found


def _names(text: str, name: str) -> bool:
    forms = (f"name: {name}\n", f'name: "{name}"', f"name: '{name}'", f'"name": "{name}"', f'"name":"{name}"')
    return CDI_KIND in text and any(form in text for form in forms)


def _cdi_texts() -> Iterator[str]:
    for folder in CDI_FOLDERS:
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.json")]):
            try:
                yield path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue


def _information() -> list[dict[str, str]]:
    """Return the driver's information about each GPU, in the order of the bus."""
    found = []
    for path in sorted(_PROC.glob("*/information")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found.append({name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)})
    return found


def _uuids_in_order() -> list[str]:
    return [card.get("GPU UUID", "") for card in _information()]


def _nodes(uuids: Iterable[str]) -> list[str]:
    """Return the device nodes of GPUs; for a MIG instance also those that MIG needs."""
    wanted = set(uuids)
    minors = [card.get("Device Minor", "") for card in _information() if card.get("GPU UUID") in wanted]
    nodes = [f"/dev/nvidia{minor}" for minor in minors if minor.isdecimal()]
    if any(uuid.startswith("MIG-") for uuid in wanted):
        nodes += sorted(glob.glob("/dev/nvidia[0-9]*")) + sorted(glob.glob("/dev/nvidia-caps/*"))  # noqa: PTH207 - strings
    return list(dict.fromkeys(nodes))


def _driver(binds: Iterable[Bind]) -> Iterator[Mount]:
    """Yield mounts of the driver's libraries at their own paths, and where NVIDIA's images expect them.

    In a slice, the share libraries are mounted instead of those that they cover.
    """
    covers = {each.target: os.path.realpath(each.source) for each in binds if not each.added}
    drivers = find_drivers()
    folder = Path(drivers.cuda or drivers.nvml).parent
    for stem in _LIBRARIES if drivers.cuda or drivers.nvml else ():
        for path in sorted(folder.glob(f"{stem}.so.*")):
            real = os.path.realpath(path)
            real = covers.get(real, real)
            yield Mount(real, str(path))
            yield Mount(real, f"{IMAGES_FOLDER}/{path.name}")
    for tool in _TOOLS:
        if Path(tool).exists():
            yield Mount(tool, tool)
