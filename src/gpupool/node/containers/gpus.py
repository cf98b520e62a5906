"""What a program's GPUs need inside its container: devices, the driver's libraries, the slice's library and pages.

Whole GPUs and slices alike get only the device nodes of their own cards: by CDI where the machine has its description
(``nvidia-ctk cdi generate``), else node by node with the driver's libraries. What the sharing mode put into the
environment (libraries to preload, the lease's pages, a simulated driver) is seen inside at places of the pool's own.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.supervision import ProcessSpec
from gpupool.node import native
from gpupool.node.containers.box import Mount
from gpupool.node.containers.places import Places
from gpupool.node.native import Product
from gpupool.node.sharing.drivers import find_drivers

CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
CDI_KIND = "nvidia.com/gpu"
LIBRARY_FOLDER = "/usr/local/nvidia/lib64"  # where images that are made for NVIDIA's runtime look
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


def gpu_parts(spec: ProcessSpec, added_env: Mapping[str, str], run_folder: Path) -> GpuParts:
    """Everything for a program whose sharing mode has added these variables. Looks at files."""
    places = Places(run_folder)
    mounts = tuple(_of_mode(spec, added_env, places))
    if not spec.gpus or spec.emulated:
        return GpuParts(mounts=mounts)
    uuids = [share.gpu_uuid for share in spec.gpus]
    named = cdi_names(uuids)
    if named is not None:
        return GpuParts(tuple(word for name in named for word in ("--device", name)), mounts)
    nodes = [*_nodes(uuids), *(node for node in _COMMON if Path(node).exists())]
    devices = tuple(word for node in nodes for word in ("--device", node))
    env = {} if "LD_LIBRARY_PATH" in spec.env else {"LD_LIBRARY_PATH": LIBRARY_FOLDER}
    return GpuParts(devices, (*mounts, *_driver()), env)


# -- the sharing mode ------------------------------------------------------------------------------------------------


def _of_mode(spec: ProcessSpec, added_env: Mapping[str, str], places: Places) -> Iterator[Mount]:
    """The pool's own files that the variables name, where they are inside."""
    texts = [text for value in added_env.values() for text in value.split(":")]
    if spec.emulated and spec.gpus and not native.missing():
        texts += [str(Product.FAKE_CUDA.path), str(Product.FAKE_NVML.path)]
    for text in dict.fromkeys(texts):
        if (inside := places.inside(text)) is not None and Path(text).exists():
            yield Mount(os.path.realpath(text), inside, read_only=not _written(text))


def _written(path: str) -> bool:
    """Programs write to the pages of their lease and to a server's pipes; what they may there say the files' modes."""
    return Path(path).is_dir()


# -- devices ---------------------------------------------------------------------------------------------------------


def cdi_names(uuids: Iterable[str]) -> list[str] | None:
    """The names by which CDI knows these GPUs; None where it does not know all of them.

    A description is YAML or JSON; a name is looked for as a word, which is how both write it.
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
    """What the driver says of each card, in the order of the bus."""
    found = []
    for path in sorted(_PROC.glob("*/information")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found.append({name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)})
    return found


def _uuids_in_order() -> list[str]:
    return [card.get("GPU UUID", "") for card in _information()]


def _nodes(uuids: Iterable[str]) -> list[str]:
    """The device nodes of cards; of a MIG instance's card, with what MIG needs beside it."""
    wanted = set(uuids)
    minors = [card.get("Device Minor", "") for card in _information() if card.get("GPU UUID") in wanted]
    nodes = [f"/dev/nvidia{minor}" for minor in minors if minor.isdecimal()]
    if any(uuid.startswith("MIG-") for uuid in wanted):
        nodes += sorted(glob.glob("/dev/nvidia[0-9]*")) + sorted(glob.glob("/dev/nvidia-caps/*"))  # noqa: PTH207 - texts
    return list(dict.fromkeys(nodes))


def _driver() -> Iterator[Mount]:
    """The driver's libraries at their own paths, and where NVIDIA's images look for them."""
    drivers = find_drivers()
    folder = Path(drivers.cuda or drivers.nvml).parent
    for stem in _LIBRARIES if drivers.cuda or drivers.nvml else ():
        for path in sorted(folder.glob(f"{stem}.so.*")):
            real = os.path.realpath(path)
            yield Mount(real, str(path))
            yield Mount(real, f"{LIBRARY_FOLDER}/{path.name}")
    for tool in _TOOLS:
        if Path(tool).exists():
            yield Mount(tool, tool)
