"""A bound on the different requests that a cycle considers for one user.

The time of a cycle grows with the number of different requests (shapes), and a single user can submit thousands, for
example jobs whose ``--cpus`` differ by a thousandth. So of each user in a project, and of each priority, at most
``MAX_SHAPES`` shapes are in the queue. The others are parked. They move up when a shape leaves the queue, and from time
to time (``ROTATION_S``) the shapes that have been in the queue longest change places with parked ones. So each has its
turn, and only this user waits longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpupool.scheduling.state.cluster import Shape
from gpupool.scheduling.values import ReplicaKey

MAX_SHAPES = 128
ROTATED = 16  # shapes that change places at a time
ROTATION_S = 2.0
Who = tuple[int, int, int]  # project, priority, user

T = TypeVar("T")


@dataclass(slots=True)
class QueueWindow(Generic[T]):
    """The shapes in the queue, and the parked entries (``T``) of others, both by user and in order of arrival."""

    bounded: bool = True
    _listed: dict[Who, Counter[Shape]] = field(default_factory=dict)  # groups of each shape
    _parked: dict[Who, dict[Shape, dict[ReplicaKey, T]]] = field(default_factory=dict)
    _places: dict[ReplicaKey, tuple[Who, Shape]] = field(default_factory=dict)

    def __contains__(self, key: ReplicaKey) -> bool:
        return key in self._places

    def __bool__(self) -> bool:
        return bool(self._parked)

    def users(self) -> list[Who]:
        """Return the users with parked entries."""
        return list(self._parked)

    def shapes(self, who: Who) -> int:
        """Return the number of shapes of a user, in the queue and parked."""
        return len(self._listed.get(who, ())) + len(self._parked.get(who, ()))

    def has_room(self, who: Who, shape: Shape) -> bool:
        """Return True if an entry with this shape may join the queue."""
        listed = self._listed.get(who, ())
        return not self.bounded or shape in listed or len(listed) < MAX_SHAPES

    def enter(self, who: Who, shape: Shape) -> None:
        """Count a new group in the queue."""
        self._listed.setdefault(who, Counter())[shape] += 1

    def leave(self, who: Who, shape: Shape) -> None:
        """Count a group that is gone from the queue."""
        listed = self._listed[who]
        listed[shape] -= 1
        if not listed[shape]:
            del listed[shape]
        if not listed:
            del self._listed[who]

    def park(self, who: Who, shape: Shape, key: ReplicaKey, entry: T) -> None:
        """Park an entry behind those that are parked already."""
        self._parked.setdefault(who, {}).setdefault(shape, {})[key] = entry
        self._places[key] = who, shape

    def forget(self, key: ReplicaKey) -> None:
        """Remove a parked entry; do nothing for another one."""
        place = self._places.pop(key, None)
        if place is None:
            return
        who, shape = place
        del self._parked[who][shape][key]
        if not self._parked[who][shape]:
            self._remove(who, shape)

    def next(self, who: Who) -> list[T]:
        """Remove and return all parked entries of the next shape if it may join the queue; else nothing."""
        parked = self._parked.get(who)
        if not parked or len(self._listed.get(who, ())) >= MAX_SHAPES:
            return []
        shape, entries = next(iter(parked.items()))
        self._remove(who, shape)
        for key in entries:
            del self._places[key]
        return list(entries.values())

    def oldest(self, who: Who) -> list[Shape]:
        """Return the shapes that may leave the queue for parked ones, those first that joined it first."""
        return list(self._listed.get(who, ()))

    def clear(self) -> Iterator[T]:
        """Remove and yield all parked entries."""
        parked, self._parked, self._places = self._parked, {}, {}
        for shapes in parked.values():
            for entries in shapes.values():
                yield from entries.values()

    def _remove(self, who: Who, shape: Shape) -> None:
        del self._parked[who][shape]
        if not self._parked[who]:
            del self._parked[who]
