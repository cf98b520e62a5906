"""Fencing: the newest epoch and attempt seen of every replica, so that a stale start is refused."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import split_attempt_key


class Epochs:
    """Kept in memory; those of forgotten replicas are empty files, named ``workload.index.attempt.epoch``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}

    def load(self) -> None:
        """Read the names of the files."""
        for entry in os.scandir(self._folder):
            key, _, epoch = entry.name.rpartition(".")
            with contextlib.suppress(GpupoolError, ValueError):
                self.see(key, int(epoch))

    def see(self, key: str, epoch: int) -> None:
        """Remember that this attempt was started with this epoch."""
        workload, index, attempt = split_attempt_key(key)
        replica = (workload, index)
        self._seen[replica] = max(self._seen.get(replica, (-1, -1)), (epoch, attempt))

    def check_new(self, key: str, epoch: int) -> None:
        """Raise ``GpupoolError(STALE_WRITE)`` unless this is newer than everything seen of the replica."""
        workload, index, attempt = split_attempt_key(key)
        seen = self._seen.get((workload, index))
        if seen is not None and (epoch, attempt) <= seen:
            raise GpupoolError(
                ErrorCode.STALE_WRITE,
                f"{workload}.{index} was already started with epoch {seen[0]}; epoch {epoch} comes too late.",
                "Nothing to do: a newer decision holds.",
            )

    def keep(self, key: str, epoch: int) -> None:
        """Remember across restarts, before the replica's folder goes. Raises OSError."""
        (self._folder / f"{key}.{epoch}").touch(mode=0o600)

    def prune(self, older_than_s: float) -> None:
        """Drop files of replicas forgotten long ago."""
        limit = time.time() - older_than_s
        for entry in os.scandir(self._folder):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < limit:
                    os.unlink(entry.path)  # noqa: PTH108 - scandir gives texts
