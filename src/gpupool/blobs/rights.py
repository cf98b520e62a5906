"""Touching files with a user's rights from a thread of a program that runs as root.

Linux keeps the identity for files (fsuid, fsgid, groups) per thread; the C library's wrappers change those of the whole
process, so the thread asks the kernel itself. Such a thread is used once and ends: no other work ever gets its rights.
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


class Rights:
    """Of one thread: ``user()`` is the part of it in which files are the user's affair."""

    def __init__(self, uid: int | None) -> None:
        self.uid = uid
        self._plain = uid is None or uid == os.geteuid()

    def begin(self) -> None:
        """Take on the user's groups; called once by the thread. Raises ``OSError``."""
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
        """Within this, files are opened and made as the user; what is open stays open after it."""
        if self._plain or self.uid is None:
            yield
            return
        _switch(_SETFSUID, self.uid)
        try:
            yield
        finally:
            _switch(_SETFSUID, 0)


def account(uid: int) -> tuple[str | None, int]:
    """The name (None: not in the user database) and main group of a user."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None, uid
    return entry.pw_name, entry.pw_gid


def call_as(uid: int | None, work: Callable[[Rights], T]) -> T:
    """Run ``work`` in a thread of its own with the rights of ``uid`` (None: this process's); raises what it raises."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            rights = Rights(uid)
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
    """Change one identity of this thread; the kernel gives the old one and no error, so ask it again."""
    number = ctypes.c_long(_need(call))
    _libc.syscall(number, ctypes.c_uint32(wanted))
    if _libc.syscall(number, ctypes.c_uint32(0xFFFFFFFF)) != wanted:
        raise PermissionError(1, f"cannot take on the rights of {wanted}")
