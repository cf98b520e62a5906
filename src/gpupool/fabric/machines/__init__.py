"""Many nodes, each reached over a unix socket; a directory lists the nodes and their sockets."""

from gpupool.fabric.machines.directory import BridgeDirectory, CombinedDirectory, Directory, NodePlace, StaticDirectory
from gpupool.fabric.machines.fabric import MachinesFabric

__all__ = ["BridgeDirectory", "CombinedDirectory", "Directory", "MachinesFabric", "NodePlace", "StaticDirectory"]
