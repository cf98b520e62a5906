"""Start the gateway only when the pool has services, because an idle one costs memory and start time.

The control plane writes a marker into the state folder and wakes the supervisor, which starts or ends the gateway. The
marker stays, so that a restarted supervisor starts the gateway at once.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

from gpupool.daemon.process.record import read_record

MARKER = "gateway-wanted"


def gateway_wanted(state_dir: str) -> bool:
    """Return whether the pool should run its gateway."""
    return (Path(state_dir) / MARKER).exists()


def want_gateway(state_dir: str, *, wanted: bool = True) -> None:
    """Start the gateway, or end it; do nothing if that is decided already. Raises ``OSError``."""
    if gateway_wanted(state_dir) == wanted:
        return
    path = Path(state_dir) / MARKER
    if wanted:
        path.touch(mode=0o600)
    else:
        path.unlink(missing_ok=True)
    record = read_record(state_dir)
    if record is not None and record.alive:
        with suppress(PermissionError):
            record.supervisor.send(signal.SIGHUP)  # it checks its children on any signal
