"""The doctor's check of scheduled backups."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing

from gpupool.daemon.doctor.database import backups
from gpupool.daemon.doctor.run import DoctorContext, Severity
from gpupool.domain.backup import BackupSchedule, file_name
from gpupool.store.sql_store import open_store


def found(context: DoctorContext) -> list[tuple[Severity, str]]:
    return [(finding.level, finding.sentence) for finding in backups(context)]


def test_schedule_without_recent_valid_copy_is_a_warning(context: DoctorContext) -> None:
    assert found(context) == []
    database = context.state_dir / "pool.db"

    async def make() -> None:
        store = await open_store(database)
        await store.close()

    asyncio.run(make())
    assert found(context) == []
    with closing(sqlite3.connect(database)) as raw:
        document = json.dumps(BackupSchedule(3600).to_dict())
        raw.execute("INSERT INTO meta (name, value) VALUES ('backups', ?)", (document,))
        raw.commit()
    ((level, sentence),) = found(context)
    assert level is Severity.WARNING
    assert "no good copy" in sentence
    folder = context.state_dir / "backups"
    folder.mkdir()
    now = time.time()
    (folder / file_name(now - 3 * 3600)).write_bytes(database.read_bytes())
    (folder / file_name(now - 60)).write_bytes(b"damaged")
    ((level, sentence),) = found(context)
    assert level is Severity.WARNING
    assert "3h00m old" in sentence
    (folder / file_name(now - 3600)).write_bytes(database.read_bytes())
    ((level, _),) = found(context)
    assert level is Severity.OK
