"""The moments in a job's life about which its user wants mail."""

from __future__ import annotations

from enum import StrEnum

from gpupool.domain.errors import ErrorCode, GpupoolError

_MAX_LENGTH = 200
_ALWAYS = ("REQUEUE", "INVALID_DEPEND", "STAGE_OUT", "ARRAY_TASKS", "TIME_LIMIT")  # sent anyway, or without a meaning


class MailType(StrEnum):
    """A moment, by its name in Slurm."""

    BEGIN = "begin"
    END = "end"  # in any way
    FAIL = "fail"
    NONE = "none"  # no mail at all, also none that is sent without a request


def parse_mail_types(text: str) -> frozenset[MailType]:
    """Parse ``END,FAIL``, ``ALL`` or ``NONE``; empty: no request. Raises ``GpupoolError(INVALID_REQUEST)``."""
    found: set[MailType] = set()
    for word in text[: _MAX_LENGTH + 1].upper().split(",") if text else ():
        if word == "ALL":
            found |= {MailType.BEGIN, MailType.END, MailType.FAIL}
        elif word in MailType.__members__:
            found.add(MailType[word])
        elif not word.startswith(_ALWAYS) or len(text) > _MAX_LENGTH:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"'{word[:40]}' is not a type of mail.",
                "Write one or several of begin, end, fail, all, none: --mail-type end,fail.",
            )
    return frozenset({MailType.NONE} if MailType.NONE in found else found)
