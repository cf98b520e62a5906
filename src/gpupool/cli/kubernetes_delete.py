"""Deleting workloads, and objects that were applied, as kubectl does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.cli.errors import report
from gpupool.cli.kubernetes import Scope, Target, find, is_kind, targets_of
from gpupool.cli.output import show
from gpupool.cli.pool import Pool, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.workload import WorkloadState
from gpupool.specs.kubernetes.manifests import named_objects
from gpupool.specs.kubernetes.words import BY_NAME, POD

STEP_S = 25.0
PATIENCE_S = 30.0


def objects_named(words: Sequence[str], files: Sequence[str], *, every: bool, labelled: bool) -> list[Target] | None:
    """The objects that words or files name; None where the words are plain names of workloads.

    Raises ``GpupoolError``.
    """
    if files:
        return [target for file in files for target in _of_file(file)]
    if not words or not is_kind(words[0]):
        return None
    if "/" in words[0]:
        return None if words[0].rpartition("/")[2].isdecimal() else targets_of(words)
    if len(words) == 1 and not every and not labelled:
        return None  # a workload may have the name of a kind
    return targets_of(words)


def _of_file(name: str) -> list[Target]:
    from gpupool.cli.manifest_files import texts

    found = [one for path, text in texts([name], recursive=False) for one in named_objects(text, path)]
    return [Target(BY_NAME[kind], (object_name,)) for kind, object_name in reversed(found)]


@dataclass(frozen=True, slots=True)
class Removal:
    """How things are deleted. ``grace_s`` None: the time that each has; 0: KILL at once."""

    ignore: bool = False
    wait: bool = True
    grace_s: float | None = None

    def one(self, pool: Pool, name: str) -> str:
        """Stop and delete a workload; the sentence that says so."""
        found = pool.get(workload_path(name))
        return f"{name} is {'deleted' if self._remove(pool, found) else 'ending; it is kept until you delete it again'}"

    def objects(self, pool: Pool, targets: Sequence[Target], project: str | None, selector: str) -> int:
        """Delete objects and say so; the exit status. What fails is said, and the others go on."""
        scope = Scope(project, labels=tuple(part for part in selector.split(",") if part))
        status = 0
        for target in targets:
            try:
                self._target(pool, target, scope)
            except GpupoolError as error:
                if not (self.ignore and error.code is ErrorCode.UNKNOWN_WORKLOAD):
                    status = report(error)
        return status

    def _target(self, pool: Pool, target: Target, scope: Scope) -> None:
        if target.kind is None:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST, "Nodes are not deleted so.", "See 'gpupool cordon' and 'gpupool drain'."
            )
        for workload in self._found(pool, target, scope):
            gone = self._remove(pool, workload)
            show([f'{target.kind.resource} "{workload["name"]}" {"deleted" if gone else "is ending"}'])

    def _found(self, pool: Pool, target: Target, scope: Scope) -> list[dict[str, Any]]:
        kind = target.kind or POD
        try:
            return find(pool, kind, scope, target.names)
        except GpupoolError as error:
            if kind is POD and error.code is ErrorCode.UNKNOWN_WORKLOAD and not self.ignore:
                hint = "Pods of other kinds end with their job: delete that, or 'gpupool stop NAME/INDEX'."
                raise GpupoolError(error.code, error.message, hint) from error
            raise

    def _remove(self, pool: Pool, workload: dict[str, Any]) -> bool:
        """Whether it is gone; without waiting, what ran is kept until it is deleted again."""
        path = workload_path(workload["id"])
        if not WorkloadState(workload["state"]).final:
            how: dict[str, Any] = {} if self.grace_s is None else {"grace_s": self.grace_s, "force": self.grace_s == 0}
            pool.post(f"{path}/stop", how)
            if not self.wait:
                return False
            grace = self.grace_s if self.grace_s is not None else pool.get(path)["limits"]["grace_s"]
            _await_end(pool, path, grace + PATIENCE_S)
        pool.delete(path)
        return True


def _await_end(pool: Pool, path: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        query = {"for": "finished", "timeout_s": min(STEP_S, left)}
        if WorkloadState(pool.get(f"{path}/wait", query, timeout_s=STEP_S + 10)["state"]).final:
            return
