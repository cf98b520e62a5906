"""The files that a program finds on its node: whose they are and which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """``tree`` is a manifest's SHA-256, ``space`` says whose files it is made of (``trees.space_of``).

    A node makes one folder for each ``workload``; its programs, and those on its GPUs, start there, or in the folder
    below it that their ``cwd`` names. ``lock`` is the path of a file in it from which an environment is made.
    """

    space: str
    tree: str
    workload: str
    lock: str = ""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FilesSpec:
        """The inverse of ``dataclasses.asdict``; unknown keys are dropped."""
        return cls(**{k: v for k, v in data.items() if k in cls.__dataclass_fields__})
