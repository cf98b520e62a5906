"""One node on the machine of the control plane, reached over its agent's unix socket."""

from gpupool.fabric.local.fabric import LocalFabric
from gpupool.fabric.local.link import LocalLink

__all__ = ["LocalFabric", "LocalLink"]
