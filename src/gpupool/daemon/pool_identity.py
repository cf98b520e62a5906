"""The pool that a state folder belongs to: stored outside the database, so that a lost database is noticed.

A new database gets the id that the folder stores, and the pool adopts running programs (``services.control.adoption``).
A database of another pool is refused while programs of the stored pool run on this machine, until an administrator
decides.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from gpupool.daemon.config import write_atomically
from gpupool.daemon.folders import NODE_DIR
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node.host.paths import StateFolder
from gpupool.node.host.records import RunningProgram, running_programs

IDENTITY = "pool-id.json"
_PRIVATE = 0o600
_SHOWN = 8


class Decision(StrEnum):
    """An administrator's decision about programs that this pool did not start, or has no record of."""

    ADOPT = "adopt"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """The pool that a folder belongs to (None: not known yet), and decisions about programs of other pools by pool id.

    ``decision`` was given at the last ``gpupool up``; the control plane uses it once.
    """

    pool_id: str | None = None
    others: dict[str, str] = field(default_factory=dict)
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """Ids of other pools whose programs are adopted or ended; ``abandon_all`` ends what cannot be adopted, too."""

    adopt: frozenset[str]
    abandon: frozenset[str]
    abandon_all: bool


def read_identity(state_dir: str) -> PoolIdentity:
    """Return the stored identity; an empty one if the file is missing or damaged."""
    try:
        data = json.loads((Path(state_dir) / IDENTITY).read_text("utf-8"))
        return PoolIdentity(data["pool_id"], dict(data.get("others", {})), data.get("decision"))
    except (OSError, ValueError, KeyError, TypeError):
        return PoolIdentity()


def decide(state_dir: str, decision: Decision | None) -> None:
    """Store an administrator's decision for the next start of the control plane. Raises OSError."""
    known = read_identity(state_dir)
    if known.decision != decision:
        _write(state_dir, PoolIdentity(known.pool_id, known.others, decision))


def settle(state_dir: str, pool_id: str) -> Decided:
    """Check that a database is this folder's, remember its id, and return what to do with programs of other pools.

    Raises ``GpupoolError(DATABASE_OTHER_POOL)`` while programs of the remembered pool run here and nothing is decided.
    """
    known = read_identity(state_dir)
    others, before = known.others, known.pool_id
    if before not in {None, pool_id}:
        others = _others_after(state_dir, str(before), known, pool_id)
    settled = PoolIdentity(pool_id, others)
    if settled != known:
        try:
            _write(state_dir, settled)
        except OSError as error:
            raise GpupoolError(
                ErrorCode.POOL_START_FAILED,
                f"The pool cannot write {Path(state_dir) / IDENTITY}: {error.strerror}.",
                "Free space on its disk and check its permissions.",
            ) from error
    return Decided(
        frozenset(pool for pool, said in others.items() if said == Decision.ADOPT),
        frozenset(pool for pool, said in others.items() if said == Decision.ABANDON),
        abandon_all=known.decision == Decision.ABANDON,
    )


def _others_after(state_dir: str, before: str, known: PoolIdentity, pool_id: str) -> dict[str, str]:
    """Return the decisions that hold from now on: the folder changes from one pool to another."""
    theirs = [found for found in running_programs(StateFolder(Path(state_dir) / NODE_DIR)) if found.pool_id != pool_id]
    if theirs and known.decision is None:
        raise _other_pool(theirs)
    return {before: known.decision} if known.decision else {}


def _other_pool(programs: list[RunningProgram]) -> GpupoolError:
    shown = [f"{found.name or found.key} (pid {found.pid})" for found in programs[:_SHOWN]]
    more = f" and {len(programs) - _SHOWN} more" if len(programs) > _SHOWN else ""
    jobs = "job runs" if len(programs) == 1 else "jobs run"
    return GpupoolError(
        ErrorCode.DATABASE_OTHER_POOL,
        f"The database belongs to another pool, and {len(programs)} {jobs} here without a record in it:"
        f" {', '.join(shown)}{more}.",
        "Start with this pool's own database, or adopt the jobs with 'gpupool up --adopt-jobs', or stop them with"
        " 'gpupool up --abandon-jobs'.",
    )


def _write(state_dir: str, identity: PoolIdentity) -> None:
    write_atomically(Path(state_dir) / IDENTITY, json.dumps(asdict(identity)), _PRIVATE)
