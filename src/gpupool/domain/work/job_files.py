"""The files of a program on its node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """``tree`` is the SHA-256 of a manifest, ``space`` the owner's file space (``file_tree.user_space``).

    A node creates one folder for each ``workload``. Its programs, and exec programs on its GPUs, start there or in the
    subfolder that their ``cwd`` names. ``lock`` is the path of a file in it that defines an environment.
    """

    space: str
    tree: str
    workload: str
    lock: str = ""
