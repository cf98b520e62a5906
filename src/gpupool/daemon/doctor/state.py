"""The checks of a pool's leftovers: dead sockets, temporary files, jobs without a keeper, database, other pools."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from gpupool import unix_sockets
from gpupool.daemon.config import config_path, read_config
from gpupool.daemon.doctor.check import (
    Check,
    DoctorContext,
    Finding,
    NamedCheck,
    count,
    entries,
    fine,
    problem,
    read_text,
    some,
    warning,
)
from gpupool.daemon.doctor.gpu import has_gpus
from gpupool.daemon.process.identity import is_locked
from gpupool.domain.errors import GpupoolError
from gpupool.node.host.paths import ReplicaFolder

_LEFTOVER = re.compile(r"(?:^\..+\.|\.tmp|\.sock\.)(?P<pid>\d+)$")
_PROBE_TIMEOUT_S = 1.0
_DATABASE_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})
_DATABASE_TIME_S = 30.0
_STEPS_BETWEEN_CHECKS = 100_000
_LISTENING = "00010000"  # __SO_ACCEPTCON, in /proc/net/unix
_POOL_SOCKET = re.compile(r"(?P<folder>/.*)/(?P<name>api|agent)\.sock(?:\.\d+)?$")
_REVISION = re.compile(r"^(down_)?revision\b[^=]*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)
_NEXT_START = "The next 'gpupool up' removes it."


def options(context: DoctorContext) -> Iterator[Finding]:
    """Check that the stored options can be read."""
    try:
        stored = read_config(str(context.state_dir))
    except GpupoolError as error:
        yield problem("options", error.message, error.hint)
        return
    found = f"The pool's options in {config_path(str(context.state_dir))} can be read."
    yield fine("options", found if stored is not None else "The pool has not been started here before.")


def sockets(context: DoctorContext) -> Iterator[Finding]:
    """Check for sockets without a server. Only the pool's own are tried: attaching to a job can start it."""
    dead = [path.name for path in entries(context.run_dir) if path.name.endswith(".sock") and _dead(path)]
    if dead:
        yield warning("stale-sockets", f"No process serves {some(dead)} in {context.run_dir}.", _NEXT_START)
    else:
        yield fine("stale-sockets", "No unused sockets.")


def _dead(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            unix_sockets.connect(probe, path)
    except ConnectionRefusedError:
        return True
    except OSError:  # a datagram socket, a full queue, no permission: the server exists
        return False
    return False


def process_files(context: DoctorContext) -> Iterator[Finding]:
    """Check for files that name, or are named after, ended processes."""
    places = dict.fromkeys((context.state_dir, context.run_dir))
    dead = [str(p) for place in places for p in entries(place) if p.suffix == ".pid" and _names_ended(p)]
    if dead:
        yield warning("stale-pids", f"Files refer to processes that no longer exist: {some(dead)}.", _NEXT_START)
    replicas = entries(context.node_state.replicas)
    left = [str(p) for place in (*places, context.node_state.path, *replicas) for p in entries(place) if _left(p)]
    if left:
        yield warning(
            "leftovers", f"{count(len(left), 'temporary file')} of ended processes: {some(left)}.", "Remove them."
        )
    if not dead and not left:
        yield fine("leftovers", "No files of ended processes.")


def _names_ended(path: Path) -> bool:
    words = read_text(path).split()
    return bool(words) and words[0].isdecimal() and not _runs(int(words[0]))


def _left(path: Path) -> bool:
    match = _LEFTOVER.search(path.name)
    return match is not None and not _runs(int(match["pid"]))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return pid > 0


def replicas(context: DoctorContext) -> Iterator[Finding]:
    """Check for jobs without an end and without a living shepherd. A running agent ends them, so they may be fresh."""
    lost = [folder.name for folder in entries(context.node_state.replicas) if _lost(ReplicaFolder(folder))]
    if not lost:
        yield fine("jobs", "Every job has its shepherd process.")
        return
    sentence = f"{count(len(lost), 'job')} without a shepherd process: {some(lost)}."
    if is_locked(context.node_state.lock):
        yield warning("jobs", sentence, "The agent runs and ends them; check again in a few seconds.")
    else:
        yield warning("jobs", sentence, "The next 'gpupool up' ends their processes and releases their GPUs.")


def _lost(folder: ReplicaFolder) -> bool:
    return folder.path.is_dir() and not folder.exit.exists() and not is_locked(folder.lock)


def databases(context: DoctorContext) -> Iterator[Finding]:
    """Check that the database is intact and of a known version."""
    found = [path for path in entries(context.state_dir) if path.suffix in _DATABASE_SUFFIXES and path.is_file()]
    if not found:
        yield fine("database", "There is no database in the pool's folder.")
    for path in found:
        try:
            with closing(open_to_read(path)) as database:
                yield _integrity(path, database)
                yield _schema(path, database)
        except sqlite3.Error as error:
            yield problem("database", f"{path} cannot be read: {error}.", _RESTORE)


_RESTORE = (
    "Stop the pool, keep a copy, and restore the newest backup next to it (or recover it with 'sqlite3 .recover')."
)


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open without side effects: a database that no process has open is read as immutable."""
    quiet = not path.with_name(path.name + "-wal").exists()
    uri = path.absolute().as_uri() + ("?immutable=1" if quiet else "?mode=ro")
    return sqlite3.connect(uri, uri=True, timeout=2.0)


def _integrity(path: Path, database: sqlite3.Connection) -> Finding:
    deadline = time.monotonic() + _DATABASE_TIME_S
    database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_CHECKS)
    try:
        verdict = str(database.execute("PRAGMA quick_check(3)").fetchone()[0])
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        return warning(
            "database", f"{path} is too large to check in {_DATABASE_TIME_S:.0f} s.", "Check it with sqlite3."
        )
    finally:
        database.set_progress_handler(None, 0)
    if verdict == "ok":
        return fine("database", f"{path} is intact.")
    return problem("database", f"{path} is damaged: {verdict[:200]}.", _RESTORE)


def _schema(path: Path, database: sqlite3.Connection) -> Finding:
    try:
        row = database.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError:
        row = None
    known, newest = known_revisions()
    if row is None:
        return problem("schema", f"{path} is not a gpupool database.", "Move it out of the way.")
    if row[0] in newest:
        return fine("schema", f"{path} has the current version ({row[0]}).")
    if row[0] in known:
        return warning("schema", f"{path} has an older version ({row[0]}).", "'gpupool up' upgrades it after a backup.")
    return problem(
        "schema",
        f"{path} has version '{str(row[0])[:40]}', which is unknown to this gpupool.",
        "Install a newer gpupool.",
    )


def known_revisions() -> tuple[set[str], set[str]]:
    """Return all schema versions of this program, and the newest: read from the migrations without running them."""
    folder = files("gpupool.store").joinpath("migrations", "versions")
    texts = [item.read_text() for item in folder.iterdir() if item.name.endswith(".py")] if folder.is_dir() else []
    pairs = [match for text in texts for match in _REVISION.findall(text)]
    known = {revision for down, revision in pairs if not down}
    return known, known - {revision for down, revision in pairs if down}


def other_pools(context: DoctorContext) -> Iterator[Finding]:
    """Check for other pools on this machine: two of them would allocate the same GPUs."""
    others = sorted(_pool_folders(context) - {str(context.run_dir), str(context.run_dir.resolve())})
    if not others:
        yield fine("other-pools", "No other pool runs on this machine.")
        return
    sentence = f"{count(len(others), 'other pool')} on this machine: {some(others)}."
    if not has_gpus(context):
        yield warning("other-pools", sentence, "They share the CPUs; stop unused pools with 'gpupool down'.")
    else:
        yield problem(
            "other-pools",
            f"{sentence} Two pools allocate the same GPUs.",
            "Keep one for all users (run as root) and stop the others with 'gpupool down'.",
        )


def _pool_folders(context: DoctorContext) -> set[str]:
    """Return folders where a pool's sockets are listening, of any user of the machine."""
    names: dict[str, set[str]] = {}
    for line in read_text(context.root / "proc/net/unix").splitlines():
        fields = line.split(None, 7)
        match = _POOL_SOCKET.match(fields[7]) if len(fields) == 8 and fields[3] == _LISTENING else None
        if match is not None:
            names.setdefault(match["folder"], set()).add(match["name"])
    return {folder for folder, found in names.items() if len(found) == 2 or "gpupool" in folder}


def _if_open(check: Check) -> Check:
    """Return the check for pools whose folder this user may read; another check reports a closed folder."""
    return lambda context: () if context.closed else check(context)


CHECKS: list[NamedCheck] = [
    ("options", _if_open(options)),
    ("stale-sockets", sockets),
    ("leftovers", _if_open(process_files)),
    ("jobs", _if_open(replicas)),
    ("database", _if_open(databases)),
    ("other-pools", other_pools),
]
