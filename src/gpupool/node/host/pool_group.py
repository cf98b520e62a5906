"""The control group of the pool's own processes. On the path of every command of root: imports only ``os``."""

# pathlib takes longer to import than this module takes to run:
# ruff: noqa: PTH110, PTH123

from __future__ import annotations

import os

ROOT = "/sys/fs/cgroup"
OWN = "/proc/self/cgroup"
POOL_GROUP = "gpupool-pool"


def join_pool_group(root: str = ROOT, own: str = OWN) -> None:
    """Move the calling process to the pool's groups if they exist and it may. Never raises."""
    for controller, group in (("cpu", f"{root}/cpu/{POOL_GROUP}"), ("", f"{root}/{POOL_GROUP}")):
        try:
            if os.path.exists(group) and may_leave(own, controller):
                with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
                    file.write("0")
        except OSError:
            continue


def may_leave(own: str, controller: str) -> bool:
    """Return True if a process is in the top group of a hierarchy, in a login's group or in the pool's.

    ``controller`` names a separate hierarchy; empty means the unified one. Raises OSError.
    """
    with open(own, encoding="utf-8") as file:
        lines = file.read().splitlines()
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            parts = [part for part in path.split("/") if part]
            return parts in ([], [POOL_GROUP]) or (
                parts[0] == "user.slice" and not any(part.endswith(".service") for part in parts)
            )
    return False
