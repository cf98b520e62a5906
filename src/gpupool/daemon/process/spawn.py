"""Starting a supervisor, as a daemon or as a child in the foreground."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from gpupool.daemon.config import PoolConfig
from gpupool.daemon.folders import log_path
from gpupool.daemon.process.children import python_module
from gpupool.daemon.process.logs import bound_log, log_size, open_log

# The environment that a pool inherits from its starter: enough to find programs, libraries and the home folder, but no
# personal settings or secrets, because later jobs of other shells must not depend on them.
PASSED_VARIABLES = frozenset(
    {
        "GPUPOOL_CONTAINER_ENGINE",
        "GPUPOOL_CONTAINER_STORE",
        "GPUPOOL_JOB_PROCESSES",
        "GPUPOOL_NATIVE",
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
PASSED_PREFIXES = ("LC_", "GPUPOOL_RAY_")


@dataclass(frozen=True, slots=True)
class Spawned:
    """A supervisor just started: ``ready_fd`` delivers its one line; ``process`` only in the foreground.

    Its new log lines come after the first ``log_from`` bytes of its log.
    """

    ready_fd: int
    process: subprocess.Popen[bytes] | None
    log_from: int


def spawn_supervisor(config: PoolConfig, *, background: bool) -> Spawned:
    """Start the supervisor of a pool whose options have been saved. Raises ``OSError``."""
    log = log_path(config.state_dir, "supervisor")
    bound_log(log)
    log_from = log_size(log)
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
        process.wait()  # the supervisor is its child, not ours
    return Spawned(ready, None if background else process, log_from)


def pool_environment(environment: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """Return the part of an environment that a pool is started with."""
    return {k: v for k, v in environment.items() if k in PASSED_VARIABLES or k.startswith(PASSED_PREFIXES)}
