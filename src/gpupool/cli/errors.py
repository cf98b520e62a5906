"""How errors look on a terminal: ``gpupool: sentence [CODE]`` and a hint, never a traceback."""

from __future__ import annotations

import os
import sys

from gpupool.domain.errors import EXIT_POOL_ERROR, ErrorCode, GpupoolError

DEBUG_VARIABLE = "GPUPOOL_DEBUG"


class ReaderGone(Exception):  # noqa: N818 - not an error: ``gpupool ps | head`` has seen enough
    """Nobody reads our output any more."""


def report(error: Exception) -> int:
    """Say on stderr what went wrong; the exit status of the pool's own errors (125).

    ``GPUPOOL_DEBUG=1`` adds the traceback, for those who mend gpupool itself.
    """
    if isinstance(error, ReaderGone):
        return _fall_silent()
    known = error if isinstance(error, GpupoolError) else _as_known(error)
    if os.environ.get(DEBUG_VARIABLE):
        import traceback

        traceback.print_exception(error)
    try:
        print(said(known), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return EXIT_POOL_ERROR
    return EXIT_POOL_ERROR


def _fall_silent() -> int:
    """Nothing more must be written, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def said(error: GpupoolError) -> str:
    """The lines for stderr."""
    line = f"gpupool: {error.message} [{error.code}]"
    return f"{line}\n  {error.hint}" if error.hint else line


def unreachable(reason: str = "") -> GpupoolError:
    """No pool answers."""
    return GpupoolError(
        ErrorCode.POOL_UNREACHABLE,
        f"The pool does not answer{f' ({reason})' if reason else ''}.",
        "'gpupool up --background' starts it; 'gpupool doctor' finds what is wrong.",
    )


def no_answer(error: OSError) -> GpupoolError:
    """What an attempt to reach the pool came to."""
    if type(error).__name__ == "SSLCertVerificationError":
        return GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            "The pool's certificate is not trusted here.",
            "Copy its certificate from <state>/tls/cert.pem and put the file's name into GPUPOOL_CA.",
        )
    return unreachable(error.strerror or str(error))


def no_pool() -> GpupoolError:
    """None has been started here."""
    return GpupoolError(
        ErrorCode.POOL_UNREACHABLE,
        "No pool is running here.",
        "'gpupool up --background' starts one, and so does 'gpupool run -- COMMAND'.",
    )


def _as_known(error: Exception) -> GpupoolError:
    if isinstance(error, OSError):
        return no_answer(error)
    return GpupoolError(
        ErrorCode.INTERNAL,
        f"gpupool itself failed ({type(error).__name__}: {str(error)[:200]}).",
        f"Run it again with {DEBUG_VARIABLE}=1 to see where.",
    )
