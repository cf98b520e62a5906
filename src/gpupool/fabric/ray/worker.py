"""Run a Ray worker: the program of the relay, in place of Ray's ``setup_worker.py``.

That one prepares a runtime environment, which the relay does not have, and then executes ``default_worker.py``. Each of
the two imports Ray, which takes most of the time of a start.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from gpupool.fabric.ray.environment import hide_slow_modules

OPTIONS_OF_SETUP = ("--serialized-runtime-env-context", "--language")


def worker_arguments(argv: Sequence[str]) -> list[str]:
    """Return the path and the options of ``default_worker.py`` from those of ``setup_worker.py``."""
    return [word for word in argv if not word.startswith(OPTIONS_OF_SETUP)]


def main() -> None:
    """Run Ray's worker program, the first argument, in this process."""
    sys.path.pop(0)  # the folder of this file: its modules are no top-level modules
    hide_slow_modules()
    sys.argv = worker_arguments(sys.argv[1:])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
