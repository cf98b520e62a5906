"""Bringing a supervisor into the world, as a daemon or as a child in the foreground."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from gpupool.daemon.children import python_module
from gpupool.daemon.config import PoolConfig
from gpupool.daemon.folders import log_path
from gpupool.daemon.logs import bound_log, open_log

# What a pool inherits of the environment of whoever happens to start it: enough to find programs, libraries and the
# home folder, and nothing of that person's settings or secrets, which later jobs of other shells must not depend on.
KEPT_VARIABLES = frozenset(
    {
        "GPUPOOL_CONTAINER_ENGINE",
        "GPUPOOL_CONTAINER_STORE",
        "GPUPOOL_RUN_DIR",
        "GPUPOOL_STATE_DIR",
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TMPDIR",
        "TZ",
        "USER",
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
    }
)


@dataclass(frozen=True, slots=True)
class Spawned:
    """A supervisor just started: ``ready_fd`` gives its one line; ``process`` only in the foreground."""

    ready_fd: int
    process: subprocess.Popen[bytes] | None


def spawn_supervisor(config: PoolConfig, *, background: bool) -> Spawned:
    """Start the supervisor of a pool whose options have been saved. Raises ``OSError``."""
    log = log_path(config.state_dir, "supervisor")
    bound_log(log)
    ready, theirs = os.pipe2(os.O_CLOEXEC)
    log_fd = open_log(log)
    mode = ("--detach",) if background else ("--parent", str(os.getpid()))
    command = ("--state-dir", config.state_dir, "--ready-fd", str(theirs), *mode)
    try:
        process = subprocess.Popen(
            python_module("gpupool.daemon.supervisor", *command),
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd if background else None,
            cwd="/",
            env=pool_environment(os.environ),
            pass_fds=(theirs,),
            start_new_session=True,
            umask=0o077,
        )
    except OSError:
        os.close(ready)
        raise
    finally:
        os.close(theirs)
        os.close(log_fd)
    if background:
        process.wait()  # the supervisor is its child, and nobody's here
    return Spawned(ready, None if background else process)


def pool_environment(environment: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """The part of an environment that a pool is started with."""
    return {k: v for k, v in environment.items() if k in KEPT_VARIABLES or k.startswith("LC_")}
