"""Lines about the end of a workload and about its next attempt, from the answers of the API. Cheap to import."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Detail = Mapping[str, Any]


def ending_lines(ending: Detail) -> list[str]:
    """Return why it ended, with the code, and what to do."""
    lines = [f"{ending['sentence']} [{ending['code']}]"]
    return [*lines, ending["remedy"]] if ending.get("remedy") else lines


def ended_text(detail: Detail) -> str:
    """Return ``train-1 failed: exited with status 3 after 2s [EXITED]``."""
    verb = "was stopped" if detail["state"] == "stopped" else detail["state"]
    return f"{detail['name']} {verb}: {ending_lines(detail['ending'])[0]}"


def ending_of(detail: Detail, index: int) -> Detail | None:
    """Return how a replica ended, else its workload; None if neither has ended, or from an older pool."""
    replica: Detail = next((each for each in detail.get("replicas") or () if each["index"] == index), {})
    found: Detail | None = replica.get("ending") or detail.get("ending")
    return found


def decisive_replica(detail: Detail) -> str:
    """Return the name of the replica that decided the end, as in ``sweep/3``; ``train`` if it is the only one."""
    if detail.get("completions", 1) == 1:
        return str(detail["name"])
    return f"{detail['name']}/{(detail.get('ending') or {}).get('index', 0)}"


def attempt_text(retrying: Detail, now: float) -> str:
    """Return ``attempt 3 of 7, next in 16s``."""
    left = retrying["next_at"] - now
    if left < 1:
        return f"attempt {retrying['attempt']} of {retrying['attempts']}, next now"
    from gpupool.domain.units import format_duration

    return f"attempt {retrying['attempt']} of {retrying['attempts']}, next in {format_duration(left)}"
