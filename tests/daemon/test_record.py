"""The record of a supervisor in the file that it holds locked."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from gpupool.daemon.folders import POOL_LOCK
from gpupool.daemon.process.record import PoolRecord, read_record, this_process, write_record


def test_record_is_complete_at_every_read(tmp_path: Path) -> None:
    me, done = this_process(), threading.Event()
    fd = os.open(tmp_path / POOL_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    write_record(fd, PoolRecord(me, "gpu7"))

    def write_on() -> None:
        while not done.is_set():
            for children in ((me, me, me), ()):
                write_record(fd, PoolRecord(me, "gpu7", children))

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        found = [read_record(str(tmp_path)) for _ in range(4000)]
    finally:
        done.set()
        writer.join()
        os.close(fd)
    assert None not in found
    assert {len(record.children) for record in found if record} == {0, 3}
