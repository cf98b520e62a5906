"""Gangs: replicas of one workload that start together or not at all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gang:
    """How the replicas of a workload belong together.

    At least ``least`` of them start together, or none; the others, up to ``most``, join as space comes free.
    ``within`` names the node label (``rack``, ``zone``, ...; ``node`` for one node) whose value their nodes should
    share: must share when ``strict``. ``mixed``: its members ask for different things; those with the lowest indexes
    are then the ones that start together. Less than ``least`` left running for longer than a while is none: the rest
    goes back to the queue.
    """

    least: int
    most: int
    within: str = ""
    strict: bool = False
    mixed: bool = False
