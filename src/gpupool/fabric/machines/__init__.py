"""Many nodes, each reached over a unix socket that leads to its agent; a directory says which there are and where."""

from gpupool.fabric.machines.directory import Directory, Place
from gpupool.fabric.machines.fabric import MachinesFabric
from gpupool.fabric.machines.static import Together, WrittenDirectory

__all__ = ["Directory", "MachinesFabric", "Place", "Together", "WrittenDirectory"]
