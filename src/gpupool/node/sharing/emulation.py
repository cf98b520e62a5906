"""The fake driver for emulated GPUs: it is preloaded and simulates the GPUs of the inventory."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host import native
from gpupool.node.host.native import Product
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.inventory.fake_driver import CONF, MIG_CONF, VARIABLE
from gpupool.node.ports import SharingHost
from gpupool.node.sharing.preload import Libraries, libraries, make_passable

FAKES = (Product.FAKE_CUDA, Product.FAKE_NVML)
TOOLS = "emulated-tools"
SMI = "nvidia-smi"
_VERIFY = Path(__file__).parents[2] / "verify"
_SMI_MODULES = ("nvidia_smi.py", "nvml.py")
_CONTEXT_FIELD = 4
_MIG_UUID_FIELD = 9  # of a line in MIG_CONF, which begins with the number of the card


def describe_gpus(host: SharingHost) -> dict[str, str] | str:
    """Return the variables by which the fake driver finds the emulated GPUs; or the reason why it cannot."""
    if not isinstance(host.inventory, EmulatedInventory):
        return "This node has no emulated GPUs."
    try:
        return {VARIABLE: str(host.inventory.fake_driver_folder(host.folder, shared=host.shared))}
    except OSError as error:
        return f"The emulated GPUs cannot be described to programs: {error.strerror}."


def context_bytes(environment: dict[str, str]) -> dict[str, int]:
    """Return the size of a CUDA context on each described GPU and MIG instance, by UUID. Raises OSError."""
    folder = Path(environment[VARIABLE])
    found: dict[str, int] = {}
    cards: list[int] = []
    for line in (folder / CONF).read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if fields[0] == "mig":
            found[fields[1]] = cards[-1]
        else:
            cards.append(int(fields[_CONTEXT_FIELD]))
            found[fields[0]] = cards[-1]
    created = folder / MIG_CONF
    for line in created.read_text(encoding="utf-8").splitlines() if created.exists() else ():
        fields = line.split()
        found[fields[_MIG_UUID_FIELD]] = cards[int(fields[0])]
    return found


def fake_driver(host: SharingHost) -> tuple[Libraries, dict[str, str]] | None:
    """Return the libraries and variables for a program with whole emulated GPUs; None if not possible."""
    if native.missing():
        return None
    found, environment = libraries(host, FAKES), describe_gpus(host)
    return None if isinstance(found, str) or isinstance(environment, str) else (found, environment)


def tools_folder(host: SharingHost) -> Path | None:
    """Return the folder with the ``nvidia-smi`` of emulated GPUs; None if it cannot be written.

    It has copies of the modules, because users of programs may not be able to read this installation. It is on the disk
    because /run is often mounted with noexec.
    """
    folder = host.store / TOOLS
    own = folder / "gpupool" / "verify"
    python = shlex.quote(sys.executable)
    script = f'#!/bin/sh\npython={python}\n[ -x "$python" ] || python=python3\n'
    script += f'exec "$python" -I -S {shlex.quote(str(own / _SMI_MODULES[0]))} "$@"\n'
    try:
        make_passable(folder, shared=host.shared)
        make_passable(own, shared=host.shared)
        for name in _SMI_MODULES:
            _write(own / name, (_VERIFY / name).read_text(encoding="utf-8"), 0o644)
        _write(folder / SMI, script, 0o755)
    except OSError:
        return None
    return folder


def _write(path: Path, text: str, mode: int) -> None:
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    new.replace(path)


def path_with_tools(spec: ProcessSpec, folder: Path | None) -> dict[str, str]:
    """Return the PATH of a program with emulated GPUs. That of a container is the image's, which is not changed."""
    if folder is None or spec.container is not None:
        return {}
    return {"PATH": f"{folder}:{spec.env.get('PATH', os.defpath)}"}
