"""The program of a started workspace: makes its Python environment once, then waits until it is stopped.

Runs as the user, in the home, with a Python that need not know the package. Standard library only.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

FOLDER = ".venv"
MARK = "gpupool-complete"


def make_environment(python: str, folder: Path) -> int:
    """Make a virtual environment unless a complete one exists; return an exit status."""
    mark = folder / MARK
    if mark.exists():
        return 0
    _show(f"Creating a virtual environment of {python} in {folder}.")
    try:
        done = subprocess.run([python, "-m", "venv", str(folder)], check=False)
    except OSError as error:
        _show(f"{python} cannot be started: {error.strerror}.")
        return 127
    if done.returncode == 0:
        mark.touch()
    return done.returncode


def _show(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


def main(words: list[str]) -> int:
    """Make the environment of the given Python, if any, and wait for TERM."""
    stops = {signal.SIGTERM, signal.SIGINT}
    if words:
        python = "python3" if words[0] == "python" else words[0]
        status = make_environment(python, Path.home() / FOLDER)
        if status:
            return status
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    _show("The workspace is ready. Open a shell with 'gpupool shell NAME'.")
    signal.sigwait(stops)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
