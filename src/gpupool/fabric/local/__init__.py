"""The link to one agent over a unix socket of this machine."""

from gpupool.fabric.local.link import LocalLink

__all__ = ["LocalLink"]
