"""Scheduled backups: the settings, the names of the files, and the decisions when to make one and which to delete."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError

MIN_EVERY_S = 60.0
MAX_EVERY_S = 366 * 86400.0
MAX_KEEP = 1_000
MAX_FOLDER_LENGTH = 1_000
DEFAULT_KEEP = 14
RETRY_DELAY_S = 300.0
DEFAULT_FOLDER = "backups"  # in the pool's state folder

_NAME = re.compile(r"pool-(\d{8}T\d{6}Z)\.db")
_STAMP = "%Y%m%dT%H%M%SZ"


class BackupState(StrEnum):
    """State of a backup file: whether it can be restored into this pool."""

    OK = "ok"
    DAMAGED = "damaged"
    FOREIGN = "foreign"  # the copy of another pool, or of a newer gpupool


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One copy in the folder of scheduled backups; ``made_at`` is read from its name."""

    name: str
    made_at: float
    size: int
    state: BackupState


@dataclass(frozen=True, slots=True)
class BackupSchedule:
    """Settings of scheduled backups: interval, number of copies, and folder.

    ``every_s`` None: never. ``folder`` empty: ``backups`` in the state folder of the machine that leads.
    """

    every_s: float | None = None
    keep: int = DEFAULT_KEEP
    folder: str = ""

    def __post_init__(self) -> None:
        """Raise ``GpupoolError`` (INVALID_REQUEST) if a value is not possible."""
        every_s = self.every_s
        if every_s is not None and not (math.isfinite(every_s) and MIN_EVERY_S <= every_s <= MAX_EVERY_S):
            raise _invalid("The interval of backups is not between one minute and a year.", "Use --every 6h, or never.")
        if not 1 <= self.keep <= MAX_KEEP:
            raise _invalid(f"The number of backups to keep is not between 1 and {MAX_KEEP}.", "Use --keep 14.")
        if self.folder:
            _check_folder(self.folder)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def folder_in(self, state_dir: str) -> str:
        """Return the folder of the copies on a machine with this state folder."""
        return self.folder or str(PurePosixPath(state_dir) / DEFAULT_FOLDER)


def _check_folder(folder: str) -> None:
    path = PurePosixPath(folder)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or not folder.isprintable():
        raise _invalid("The folder for backups is not an absolute path.", "Use a path like /srv/backup/gpupool.")
    if len(folder) > MAX_FOLDER_LENGTH:
        raise _invalid(f"The path of the folder for backups is longer than {MAX_FOLDER_LENGTH}.", "Use a shorter one.")


def _invalid(sentence: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)


def file_name(at: float) -> str:
    """Return the name of a copy made at a time: ``pool-YYYYmmddTHHMMSSZ.db``, in UTC."""
    return f"pool-{datetime.fromtimestamp(at, UTC).strftime(_STAMP)}.db"


def made_at(name: str) -> float | None:
    """Return the time in the name of a scheduled copy; None if the name is of another form."""
    found = _NAME.fullmatch(name)
    try:
        return datetime.strptime(found[1], _STAMP).replace(tzinfo=UTC).timestamp() if found else None
    except ValueError:
        return None


def newest_good(files: Iterable[BackupFile], now: float) -> float | None:
    """Return the time of the newest copy that can be restored; a copy from the future does not count."""
    return max((file.made_at for file in files if file.state is BackupState.OK and file.made_at <= now), default=None)


def is_due(schedule: BackupSchedule, newest: float | None, failed_at: float | None, now: float) -> bool:
    """Return whether a copy is to be made now; after a failure not before ``RETRY_DELAY_S``."""
    if schedule.every_s is None:
        return False
    if failed_at is not None and 0 <= now - failed_at < min(RETRY_DELAY_S, schedule.every_s):
        return False
    return newest is None or not 0 <= now - newest < schedule.every_s


def is_late(schedule: BackupSchedule, newest: float | None, now: float) -> bool:
    """Return whether the newest good copy is older than twice the interval, or there is none."""
    return schedule.every_s is not None and (newest is None or now - newest > 2 * schedule.every_s)


def to_delete(schedule: BackupSchedule, files: Iterable[BackupFile], now: float) -> list[str]:
    """Return the names of this pool's copies that are too many.

    The newest ``keep`` good ones stay; all older ones go, damaged ones included. Copies of other pools are never
    deleted. Copies from the future count as the oldest.
    """
    own = [file for file in files if file.state is not BackupState.FOREIGN]
    own.sort(key=lambda file: (file.made_at <= now, file.made_at), reverse=True)
    good = 0
    names = []
    for file in own:
        if good >= schedule.keep:
            names.append(file.name)
        good += file.state is BackupState.OK
    return names
