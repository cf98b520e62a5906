"""Clone a git repository into the working folder, then become the program.

``git_clone.py URL REV PATH -- PROGRAM ARGS`` runs as the user, in the working folder, with a Python that need not know
the package. Standard library only. An existing clone of the same repository is used again, so that a second attempt
and other replicas find it.

Credentials: keys and helpers of the user, or the variables GITSYNC_USERNAME and GITSYNC_PASSWORD (a token) for https.
They are given to git in its environment only, and the program does not get them.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

USERNAME, PASSWORD = "GITSYNC_USERNAME", "GITSYNC_PASSWORD"
SECRETS = (USERNAME, PASSWORD)
PROTOCOLS = "https:http:ssh:git:file"
TIMEOUT_S = 3600.0
FAILED, MISSING, NOT_EXECUTABLE = 128, 127, 126
NODE_PROGRAM = "@gpupool"  # as in domain/work/program/supervision.py
_TRACES = ("GIT_TRACE", "GIT_CURL_VERBOSE")  # they would print the credentials


class CloneError(Exception):
    """The repository cannot be cloned; the text says why."""


def git_environment(env: dict[str, str], url: str) -> dict[str, str]:
    """Return the environment of git: no questions, and the credentials for this host only."""
    made = {name: value for name, value in env.items() if not name.startswith(_TRACES)}
    user, password = made.pop(USERNAME, "x-access-token"), made.pop(PASSWORD, "")
    made |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": PROTOCOLS}
    made.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    parts = urlsplit(url)
    if password and parts.scheme == "https":
        number = int(made.get("GIT_CONFIG_COUNT", "0"))
        secret = base64.b64encode(f"{user}:{password}".encode()).decode()
        made["GIT_CONFIG_COUNT"] = str(number + 1)
        made[f"GIT_CONFIG_KEY_{number}"] = f"http.https://{parts.netloc}/.extraHeader"
        made[f"GIT_CONFIG_VALUE_{number}"] = f"Authorization: Basic {secret}"
    return made


def clone(url: str, revision: str, target: Path, env: dict[str, str]) -> None:
    """Make ``target`` a clone at this revision; one process at a time. Raises ``CloneError``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (target / ".git").exists():
            _refresh(url, revision, target, env)
            return
        new = target.with_name(f".{target.name}.{os.getpid()}.new")
        try:
            _git(["clone", "--quiet", "--", url, str(new)], env)
            if revision:
                _checkout(revision, new, env)
            new.rename(target)
        except OSError as error:
            raise CloneError(f"{target} cannot be written: {error.strerror}.") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)
    finally:
        os.close(lock)


def _refresh(url: str, revision: str, target: Path, env: dict[str, str]) -> None:
    found = _git(["-C", str(target), "config", "--get", "remote.origin.url"], env, status=(0, 1)).strip()
    if found != url:
        raise CloneError(f"{target} is a clone of another repository. Choose another path, or delete the folder.")
    if revision:
        _git(["-C", str(target), "fetch", "--quiet", "--tags", "origin"], env)
        _checkout(revision, target, env)


def _checkout(revision: str, folder: Path, env: dict[str, str]) -> None:
    """Check out a branch of the repository, a tag or a commit."""
    check = ["-C", str(folder), "rev-parse", "--quiet", "--verify", "--end-of-options"]
    for name in (f"refs/remotes/origin/{revision}", f"refs/tags/{revision}", revision):
        commit = _git([*check, f"{name}^{{commit}}"], env, status=(0, 1, FAILED)).strip()
        if commit:
            _git(["-C", str(folder), "checkout", "--quiet", "--detach", commit], env)
            return
    raise CloneError(f"The repository has no branch, tag or commit {revision}.")


def _git(words: list[str], env: dict[str, str], status: tuple[int, ...] = (0,)) -> str:
    git = shutil.which("git", path=env.get("PATH", os.defpath))
    if git is None:
        raise CloneError("The node has no git. Ask an administrator to install it.")
    try:
        done = subprocess.run(
            [git, *words], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CloneError(f"git took longer than {TIMEOUT_S / 60:.0f} minutes.") from error
    if done.returncode not in status:
        raise CloneError(f"git ended with status {done.returncode}; its message is above.")
    return done.stdout.decode(errors="replace")


def main(words: list[str]) -> int:
    """Clone, then execute the program; return only if one of them fails."""
    url, revision, path, _, *program = words
    env = dict(os.environ)
    try:
        clone(url, revision, Path.cwd() / path, git_environment(env, url))
    except (CloneError, OSError) as error:
        sys.stderr.write(f"gpupool: {url} was not cloned into {path}. {error}\n")
        return FAILED
    for name in SECRETS:
        env.pop(name, None)
    if program[0] == NODE_PROGRAM:
        program = [sys.executable, "-I", str(Path(__file__).parents[2] / program[1]), *program[2:]]
    try:
        os.execvpe(program[0], program, env)  # noqa: S606 - no shell is meant
    except FileNotFoundError:
        sys.stderr.write(f"gpupool: No such program: {program[0]}\n")
        return MISSING
    except OSError as error:
        sys.stderr.write(f"gpupool: Cannot execute {program[0]}: {error.strerror}\n")
        return NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
