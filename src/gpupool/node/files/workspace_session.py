"""The program of a started workspace: makes its Python environment once, then waits until it is stopped.

Runs as the user, in the home, with a Python that need not know the package. Standard library only.

``~/.venv`` is complete unless ``~/.venv.incomplete`` exists, which is made before the build begins and deleted after
its end. So an environment whose build was killed is made again, and programs do not find it on their ``PATH``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

FOLDER = ".venv"
INCOMPLETE = ".venv.incomplete"
PLACE = "gpupool-path"  # file in the environment with its own path
FILES = "environment"  # folder in the home with the files of the environment
CONDA_META = "conda-meta"
CONDA_PROGRAMS = ("micromamba", "mamba", "conda")
_MISSING = 127


class BuildError(Exception):
    """The environment cannot be made; ``status`` is the exit status of the session."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        super().__init__(sentence)
        self.status = status


def prepare(environment: str, home: Path) -> None:
    """Make the environment unless a complete one exists; adapt one whose home was copied. Raises ``BuildError``."""
    folder, incomplete = home / FOLDER, home / INCOMPLETE
    if folder.exists() and not incomplete.exists() and not _adapt(folder):
        return
    incomplete.touch()
    _show(f"Creating the environment {environment} in {folder}.")
    shutil.rmtree(folder, ignore_errors=True)
    for command in commands(environment, folder):
        _run(command, environment, home)
    (folder / PLACE).write_text(str(folder))
    incomplete.unlink()


def commands(environment: str, folder: Path) -> list[list[str]]:
    """Return the commands that make an environment, in order. Raises ``BuildError`` if a program is missing."""
    if environment == "uv.lock":
        return [[_find_uv(), "sync", "--frozen", "--no-install-project", "--no-progress"]]
    if environment == "requirements.txt":
        install = [str(folder / "bin/python"), "-m", "pip", "install", "--no-input", "-r", environment]
        return [["python3", "-m", "venv", str(folder)], install]
    if environment == "conda.yml":
        program = next(filter(None, map(shutil.which, CONDA_PROGRAMS)), None)
        if program is None:
            raise BuildError(
                f"The node has none of {', '.join(CONDA_PROGRAMS)}, one of which conda.yml needs. Install "
                "micromamba in ~/.local/bin of the workspace, or ask an administrator to install it. Then start again.",
                _MISSING,
            )
        verb = ["create", "--yes"] if Path(program).name == "micromamba" else ["env", "create"]
        return [[program, *verb, "--prefix", str(folder), "--file", environment]]
    python = "python3" if environment == "python" else environment
    return [[python, "-m", "venv", str(folder)]]


def _find_uv() -> str:
    """Return uv: of the PATH, or the one next to this Python."""
    found = shutil.which("uv", path=f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}")
    if found is None:
        raise BuildError(
            "The node has no uv, which uv.lock needs. Install uv in ~/.local/bin of the workspace, or ask an "
            "administrator to install it on the node; then start again.",
            _MISSING,
        )
    return found


def _run(command: list[str], environment: str, home: Path) -> None:
    files = home / FILES
    variables = os.environ | {"UV_PROJECT_ENVIRONMENT": str(home / FOLDER)}
    variables.pop("VIRTUAL_ENV", None)
    try:
        # One stream, because the log does not keep the order of two, and `workspace start` stops reading at the last
        # sentence, which main() prints.
        done = subprocess.run(
            command, check=False, cwd=files if files.is_dir() else home, env=variables, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be started: {error.strerror}.", _MISSING) from error
    if done.returncode != 0:
        raise BuildError(
            f"The environment {environment} could not be made: '{Path(command[0]).name}' ended with status "
            f"{done.returncode}; its messages are above. If packages could not be downloaded, connect the node to the "
            "network or name an index that it reaches. The next start tries again.",
            done.returncode if done.returncode > 0 else 1,
        )


def _adapt(folder: Path) -> bool:
    """Correct the paths in scripts of an environment whose home was copied; return whether it must be made again."""
    place = folder / PLACE
    before = place.read_text() if place.is_file() else str(folder)
    if before == str(folder):
        return False
    if (folder / CONDA_META).exists():  # its programs contain the path, too
        _show(f"The environment was copied from {before}. An environment of conda must be made again.")
        return True
    for script in (folder / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if before.encode() in text and (text.startswith(b"#!") or script.name.lower().startswith("activate")):
            new = script.with_name(f".{script.name}.new")
            new.write_bytes(text.replace(before.encode(), str(folder).encode()))
            shutil.copymode(script, new)
            new.replace(script)
    place.write_text(str(folder))
    return False


def _show(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


def main(words: list[str]) -> int:
    """Make the given environment, if any, and wait for TERM."""
    stops = {signal.SIGTERM, signal.SIGINT}
    if words:
        try:
            prepare(words[0], Path.home())
        except BuildError as error:
            _show(str(error))
            return error.status
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    _show("The workspace is ready. Open a shell with 'gpupool shell NAME'.")
    signal.sigwait(stops)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
