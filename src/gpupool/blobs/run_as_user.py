"""File access with a user's rights, from a thread of a program that runs as root.

Linux keeps the identity for file access (fsuid, fsgid, groups) per thread. The C library changes it for the whole
process, so the thread calls the kernel directly. Such a thread is used once and ends: no other work gets its rights.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_SETFSUID, _SETFSGID, _SETGROUPS = {
    "x86_64": (122, 123, 116),
    "aarch64": (151, 152, 159),
    "ppc64le": (138, 139, 81),
}.get(os.uname().machine, (0, 0, 0))
_libc = ctypes.CDLL(None, use_errno=True)


class UserRights:
    """The rights of one thread; ``user()`` is the block in which files are accessed as the user."""

    def __init__(self, uid: int | None) -> None:
        self.uid = uid
        self._plain = uid is None or uid == os.geteuid()

    def begin(self) -> None:
        """Set the user's groups; called once by the thread. Raises ``OSError``."""
        if self._plain or self.uid is None:
            return
        name, gid = account(self.uid)
        groups = os.getgrouplist(name, gid) if name else [gid]
        array = (ctypes.c_uint32 * len(groups))(*groups)
        if _libc.syscall(ctypes.c_long(_need(_SETGROUPS)), ctypes.c_size_t(len(groups)), array) != 0:
            raise OSError(ctypes.get_errno(), "setgroups")
        _switch(_SETFSGID, gid)

    @contextmanager
    def user(self) -> Iterator[None]:
        """Access files as the user within this block; open descriptors stay open after it."""
        if self._plain or self.uid is None:
            yield
            return
        _switch(_SETFSUID, self.uid)
        try:
            yield
        finally:
            _switch(_SETFSUID, 0)


def account(uid: int) -> tuple[str | None, int]:
    """Return the name (None: not in the user database) and main group of a user."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None, uid
    return entry.pw_name, entry.pw_gid


def call_as(uid: int | None, work: Callable[[UserRights], T]) -> T:
    """Run ``work`` in a new thread with the rights of ``uid`` (None: this process's); raise its errors."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            rights = UserRights(uid)
            rights.begin()
            found.append(work(rights))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            failed.append(error)

    thread = threading.Thread(target=run, name="as-user")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _need(number: int) -> int:
    if number == 0:
        raise OSError(0, f"files cannot be made for other users on {os.uname().machine}")
    return number


def _switch(call: int, wanted: int) -> None:
    """Change one identity of this thread; the call reports no error, so read the identity afterwards."""
    number = ctypes.c_long(_need(call))
    _libc.syscall(number, ctypes.c_uint32(wanted))
    if _libc.syscall(number, ctypes.c_uint32(0xFFFFFFFF)) != wanted:
        raise PermissionError(1, f"cannot take on the rights of {wanted}")
