"""Faults and warnings of a manifest, each with its position."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.domain.errors import ErrorCode, GpupoolError

MAX_SHOWN = 10
Place = tuple[int, int]


class ManifestNotice(StrEnum):
    """Names of the warnings; ``docs/kubernetes.md`` says what each means."""

    FIELD_IGNORED = "FIELD_IGNORED"
    ANNOTATION_IGNORED = "ANNOTATION_IGNORED"
    KIND_SKIPPED = "KIND_SKIPPED"
    PROJECT_UNKNOWN = "PROJECT_UNKNOWN"
    IMAGE_IGNORED = "IMAGE_IGNORED"
    ENTRYPOINT_UNKNOWN = "ENTRYPOINT_UNKNOWN"
    VOLUME_NOT_MOUNTED = "VOLUME_NOT_MOUNTED"
    CONTAINER_LEFT_OUT = "CONTAINER_LEFT_OUT"
    COMPUTE_FOLLOWS_MEMORY = "COMPUTE_FOLLOWS_MEMORY"
    LIMIT_IGNORED = "LIMIT_IGNORED"
    WORK_QUEUE = "WORK_QUEUE"
    PER_REPLICA = "PER_REPLICA"
    EXIT_CODES_ALIKE = "EXIT_CODES_ALIKE"
    CLEAN_UP = "CLEAN_UP"
    PRIORITY_CLASS_UNKNOWN = "PRIORITY_CLASS_UNKNOWN"
    SERVICE_ADDRESS = "SERVICE_ADDRESS"
    PORT_REPLACED = "PORT_REPLACED"
    PORT_FIXED = "PORT_FIXED"
    PORT_UNKNOWN = "PORT_UNKNOWN"
    PORT_IGNORED = "PORT_IGNORED"
    ONE_BY_ONE = "ONE_BY_ONE"


@dataclass(frozen=True, slots=True)
class Remark:
    """A warning: its name, a sentence, and where (lines and columns count from 1)."""

    code: ManifestNotice
    message: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that prevents the manifest from running."""

    code: ErrorCode
    message: str
    hint: str
    line: int
    column: int


@dataclass(slots=True)
class ManifestReport:
    """Collects faults and warnings; ``name`` is that of the file."""

    name: str
    faults: list[Fault] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def refuse(self, place: Place, sentence: str, hint: str = "", code: ErrorCode = ErrorCode.UNSUPPORTED) -> None:
        """Record a fault; reading continues, so that all faults are reported at once."""
        self.faults.append(Fault(code, sentence, hint, *place))

    def warn(self, place: Place, code: ManifestNotice, sentence: str) -> None:
        """Record a difference from the behaviour in a cluster."""
        remark = Remark(code, sentence, *place)
        if remark not in self.remarks:
            self.remarks.append(remark)

    def check(self) -> None:
        """Raise ``GpupoolError`` with the first fault's code and the places of all, if there are any."""
        if not self.faults:
            return
        faults = sorted(dict.fromkeys(self.faults), key=lambda fault: (fault.line, fault.column))
        lines = [f"{self.name}:{fault.line}:{fault.column}: {fault.message}" for fault in faults[:MAX_SHOWN]]
        if len(faults) > MAX_SHOWN:
            lines.append(f"{self.name}: and {len(faults) - MAX_SHOWN} more.")
        hints = dict.fromkeys(fault.hint for fault in faults[:MAX_SHOWN] if fault.hint)
        raise GpupoolError(faults[0].code, "\n".join(lines), "\n  ".join(hints))
