"""What programs and notebooks talk to the pool with: ``Client``, ``Job``, ``Lease``.

Nothing is imported before it is used: ``client.locate`` is on the path of every ``gpupool run``.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself would cost milliseconds
if TYPE_CHECKING:
    from gpupool.client.attach import Attachment
    from gpupool.client.client import Client
    from gpupool.client.job import Job, JobFailed, Lease

__all__ = ["Attachment", "Client", "Job", "JobFailed", "Lease"]

_HOMES = {"Attachment": "attach", "Client": "client", "Job": "job", "JobFailed": "job", "Lease": "job"}


def __getattr__(name: str) -> object:
    """Import a public name from its module when somebody asks for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
