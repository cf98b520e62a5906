"""Print errors on the terminal as ``gpupool: sentence [CODE]`` and a hint, never as a traceback."""

from __future__ import annotations

import errno
import os
import select
import sys

from gpupool.cli.terminal import STDOUT
from gpupool.client.transport.http import is_untrusted, untrusted_error
from gpupool.domain.errors import EXIT_POOL_ERROR, ErrorCode, GpupoolError

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # no connection has these errors
DEBUG_VARIABLE = "GPUPOOL_DEBUG"


def report(error: Exception) -> int:
    """Print an error on stderr and return the exit status of the pool's own errors (125).

    ``GPUPOOL_DEBUG=1`` adds the traceback.
    """
    if isinstance(error, BrokenPipeError) and _is_output_closed():  # not an error: ``gpupool ps | head``
        return _discard_output()
    known = error if isinstance(error, GpupoolError) else _to_gpupool_error(error)
    if os.environ.get(DEBUG_VARIABLE):
        import traceback

        traceback.print_exception(error)
    try:
        print(format_error(known), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return EXIT_POOL_ERROR
    return EXIT_POOL_ERROR


def _is_output_closed() -> bool:
    """Return whether the reader of stdout is gone: a pool that closes its connection causes the same error."""
    poller = select.poll()
    poller.register(STDOUT, 0)
    return any(events & select.POLLERR for _, events in poller.poll(0))


def _discard_output() -> int:
    """Redirect stdout to /dev/null, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    return 0


def format_error(error: GpupoolError) -> str:
    """Return the lines for stderr."""
    line = f"gpupool: {error.message} [{error.code}]"
    return f"{line}\n  {error.hint}" if error.hint else line


def unreachable_error(reason: str = "") -> GpupoolError:
    """Return the error for a pool that does not answer."""
    return GpupoolError(
        ErrorCode.POOL_UNREACHABLE,
        f"The pool does not answer{f' ({reason})' if reason else ''}.",
        "Start it with 'gpupool up --background'; check this machine with 'gpupool doctor'.",
    )


def connection_error(error: OSError) -> GpupoolError:
    """Return the error for a failed connection to the pool."""
    if is_untrusted(error):
        return untrusted_error()
    return unreachable_error(error.strerror or str(error))


def no_pool_error() -> GpupoolError:
    """Return the error for a machine without a pool."""
    return GpupoolError(
        ErrorCode.POOL_UNREACHABLE,
        "No pool is running here.",
        "Start one with 'gpupool up --background' or 'gpupool run -- COMMAND'.",
    )


def _to_gpupool_error(error: Exception) -> GpupoolError:
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return GpupoolError(
            ErrorCode.INVALID_FILE,
            f"The output cannot be written ({error.strerror}).",
            "Free space, or write to another disk; changes that the pool has made stay.",
        )
    if isinstance(error, OSError):
        return connection_error(error)
    hint = f"Run it again with {DEBUG_VARIABLE}=1 for the traceback."
    if isinstance(error, KeyError):  # most likely a field that an older pool does not send
        hint = f"If the pool is older than this client, start it again with 'gpupool down' and 'gpupool up'. {hint}"
    return GpupoolError(
        ErrorCode.INTERNAL, f"Internal error in gpupool ({type(error).__name__}: {str(error)[:200]}).", hint
    )
