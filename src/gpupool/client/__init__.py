"""The Python client of the pool: ``Client``, ``Job``, ``Lease``.

Names are imported on first use: ``client.discovery`` is on the path of every ``gpupool run``.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself would cost milliseconds
if TYPE_CHECKING:
    from gpupool.client.client import Client
    from gpupool.client.job import Job, JobFailed, Lease
    from gpupool.client.transport.attach import Attachment

__all__ = ["Attachment", "Client", "Job", "JobFailed", "Lease"]

_HOMES = {"Attachment": "transport.attach", "Client": "client", "Job": "job", "JobFailed": "job", "Lease": "job"}


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
