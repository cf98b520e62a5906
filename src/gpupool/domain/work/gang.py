"""Gangs: replicas of one workload that start together or not at all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gang:
    """The size and topology of a gang.

    At least ``least`` replicas start together, or none; the others, up to ``most``, join as GPUs become free.
    ``within`` is the node label (``rack``, ``zone``, ...; ``node`` for one node) whose value their nodes should share,
    and must share if ``strict``. ``mixed``: members have different requests; those with the lowest indexes then start
    together. If fewer than ``least`` are left running for some time, all are queued again.
    """

    least: int
    most: int
    within: str = ""
    strict: bool = False
    mixed: bool = False
