"""gpupool: the GPUs of a team, shared.

``from gpupool import Client`` gives the typed client. Programs in the pool report their progress with
``gpupool.progress`` and ``gpupool.checkpointed``. Everything else is reached through the ``gpupool`` command.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself would cost ``gpupool run`` five milliseconds
if TYPE_CHECKING:
    from gpupool.client import Client
    from gpupool.client.progress import checkpointed, progress

__all__ = ["Client", "__version__", "checkpointed", "progress"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the client only on use: the command line must start in milliseconds."""
    if name == "Client":
        from gpupool.client import Client

        return Client
    if name in {"checkpointed", "progress"}:
        from gpupool.client import progress as reports

        return getattr(reports, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
