"""The control plane as a process: ``python -m gpupool.daemon.control_plane_main --state-dir DIR``.

Imports take nearly all CPU time of its start, and pools start on busy machines. So garbage collection is off until it
answers (saves a sixth of that time), and modules that only colour terminal output are not loaded.
"""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Load and run the control plane; return its exit status."""
    gc.disable()  # ``control_plane`` enables it once it is ready
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # structlog would load it, but works without it
    from gpupool.daemon import control_plane

    return control_plane.main()


if __name__ == "__main__":
    raise SystemExit(main())
