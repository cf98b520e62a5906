"""Start of an MPI launcher: set the remote start program for ``mpirun``, then execute the user's program.

The path of Python is this machine's, which the control plane cannot know. Standard library only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    """Run ``launch COMMAND...``."""
    if len(sys.argv) < 2:
        sys.stderr.write("usage: launch COMMAND...\n")
        return 2
    agent = f"{sys.executable} -I {Path(__file__).resolve().with_name('remote_start.py')}"
    os.environ.setdefault("OMPI_MCA_plm_rsh_agent", agent)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is meant
    except FileNotFoundError:
        sys.stderr.write(f"No such program: {sys.argv[1]}\n")
        return 127
    except OSError as error:
        sys.stderr.write(f"Cannot execute {sys.argv[1]}: {error.strerror}\n")
        return 126


if __name__ == "__main__":
    sys.exit(main())
