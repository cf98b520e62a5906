"""A file server (SFTP version 3) on standard input and output, for workloads without OpenSSH's sftp-server.

It is sent to the Python of the workload, so it uses only the standard library and the syntax of Python 3.7. It has the
rights of the user who runs it and therefore checks no paths. Protocol: draft-ietf-secsh-filexfer-02, with the
extensions posix-rename, hardlink and fsync of OpenSSH.
"""

# Paths are bytes here, which pathlib cannot represent:
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH115, PTH118, PTH208, PTH211

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

VERSION = 3
MAX_PACKET_BYTES = 256 << 10
MAX_HANDLES = 512
MAX_NAMES = 100  # in one answer to READDIR
OK, EOF, NO_SUCH_FILE, PERMISSION_DENIED, FAILURE, BAD_MESSAGE, UNSUPPORTED = 0, 1, 2, 3, 4, 5, 8
STATUS, HANDLE, DATA, NAME, ATTRS = 101, 102, 103, 104, 105
HAS_SIZE, HAS_OWNER, HAS_MODE, HAS_TIMES, HAS_EXTENDED = 1, 2, 4, 8, 0x80000000
EXTENSIONS = (b"posix-rename@openssh.com", b"hardlink@openssh.com", b"fsync@openssh.com")


class ServerError(Exception):
    """A status other than OK."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code


class Packet:
    """The fields of a request, read one after another."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if self.at + count > len(self.data):
            raise ServerError(BAD_MESSAGE, "the packet is too short")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        """Return an unsigned number of 32 bits."""
        return int(struct.unpack(">I", self.take(4))[0])

    def long(self) -> int:
        """Return an unsigned number of 64 bits."""
        return int(struct.unpack(">Q", self.take(8))[0])

    def text(self) -> bytes:
        """Return a string of bytes."""
        return self.take(self.number())

    def path(self) -> bytes:
        """Return a path; the empty one is the current folder."""
        return self.text() or b"."

    def attributes(self) -> dict[int, Any]:
        """Return the attributes that are present, by flag."""
        flags = self.number()
        found: dict[int, Any] = {}
        if flags & HAS_SIZE:
            found[HAS_SIZE] = self.long()
        if flags & HAS_OWNER:
            found[HAS_OWNER] = (self.number(), self.number())
        if flags & HAS_MODE:
            found[HAS_MODE] = stat.S_IMODE(self.number())
        if flags & HAS_TIMES:
            found[HAS_TIMES] = (self.number(), self.number())
        return found


def pack_text(data: bytes) -> bytes:
    """Return a string of bytes with its length."""
    return struct.pack(">I", len(data)) + data


def pack_attributes(info: os.stat_result) -> bytes:
    """Return the attributes of a file."""
    flags = HAS_SIZE | HAS_OWNER | HAS_MODE | HAS_TIMES
    times = (int(info.st_atime) & 0xFFFFFFFF, int(info.st_mtime) & 0xFFFFFFFF)
    return struct.pack(">IQIIIII", flags, info.st_size, info.st_uid, info.st_gid, info.st_mode, *times)


def long_name(name: bytes, info: os.stat_result) -> bytes:
    """Return the line that clients show for a file in a listing."""
    when = time.strftime("%b %d %Y", time.localtime(info.st_mtime))
    mode = stat.filemode(info.st_mode)
    line = f"{mode} {info.st_nlink:4d} {info.st_uid:<8d} {info.st_gid:<8d} {info.st_size:8d} {when} "
    return line.encode() + name


def set_attributes(target: bytes | int, found: dict[int, Any]) -> None:
    """Change a file, by path or descriptor."""
    if HAS_SIZE in found:
        os.truncate(target, found[HAS_SIZE])
    if HAS_OWNER in found:
        os.chown(target, *found[HAS_OWNER])
    if HAS_MODE in found:
        os.chmod(target, found[HAS_MODE])
    if HAS_TIMES in found:
        os.utime(target, found[HAS_TIMES])


class DirectoryListing:
    """An open folder."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.names = iter([b".", b"..", *os.listdir(path)])


class Server:
    """Answers requests. Handles are open files (descriptors) and folders."""

    def __init__(self) -> None:
        self.handles: dict[bytes, int | DirectoryListing] = {}
        self.count = 0
        self.answers: dict[int, Callable[[Packet], tuple[int, bytes] | None]] = {
            3: self.open,
            4: self.close,
            5: self.read,
            6: self.write,
            7: lambda p: self.stat(os.lstat, p.path()),
            8: lambda p: self.stat(os.fstat, self.file(p)),
            9: lambda p: set_attributes(p.path(), p.attributes()),
            10: lambda p: set_attributes(self.file(p), p.attributes()),
            11: lambda p: self.handle(DirectoryListing(p.path())),
            12: self.list,
            13: lambda p: os.unlink(p.path()),
            14: lambda p: os.mkdir(p.path(), p.attributes().get(HAS_MODE, 0o777)),
            15: lambda p: os.rmdir(p.path()),
            16: lambda p: self.name(os.path.realpath(p.path())),
            17: lambda p: self.stat(os.stat, p.path()),
            18: self.rename,
            19: lambda p: self.name(os.readlink(p.path())),
            20: lambda p: os.symlink(p.path(), p.path()),  # OpenSSH sends the target first
            200: self.extended,
        }

    def answer(self, kind: int, packet: Packet) -> tuple[int, bytes]:
        """Return the type and the content of the answer to one request."""
        try:
            return self.answers.get(kind, self.refuse)(packet) or self.status(OK)
        except ServerError as error:
            return self.status(error.code, str(error))
        except OSError as error:
            codes = {errno.ENOENT: NO_SUCH_FILE, errno.EACCES: PERMISSION_DENIED, errno.EPERM: PERMISSION_DENIED}
            return self.status(codes.get(error.errno or 0, FAILURE), error.strerror or "failure")
        except (ValueError, OverflowError) as error:
            return self.status(FAILURE, str(error))

    def refuse(self, packet: Packet) -> None:
        """Refuse a request."""
        raise ServerError(UNSUPPORTED, f"not supported ({len(packet.data)} bytes)")

    def status(self, code: int, text: str = "") -> tuple[int, bytes]:
        """Return a status."""
        return STATUS, struct.pack(">I", code) + pack_text(text.encode("utf-8", "replace")) + pack_text(b"")

    def stat(self, ask: Callable[[Any], os.stat_result], target: bytes | int) -> tuple[int, bytes]:
        """Return the attributes of a file."""
        return ATTRS, pack_attributes(ask(target))

    def name(self, path: bytes) -> tuple[int, bytes]:
        """Return one path."""
        return NAME, struct.pack(">I", 1) + pack_text(path) + pack_text(path) + struct.pack(">I", 0)

    def handle(self, opened: int | DirectoryListing) -> tuple[int, bytes]:
        """Return a new handle."""
        if len(self.handles) >= MAX_HANDLES:
            if isinstance(opened, int):
                os.close(opened)
            raise ServerError(FAILURE, "too many open files")
        self.count += 1
        name = b"%d" % self.count
        self.handles[name] = opened
        return HANDLE, pack_text(name)

    def file(self, packet: Packet) -> int:
        """Return the descriptor of the handle in a request."""
        found = self.handles.get(packet.text())
        if not isinstance(found, int):
            raise ServerError(FAILURE, "not an open file")
        return found

    def open(self, packet: Packet) -> tuple[int, bytes]:
        """Open a file."""
        path, wanted, found = packet.path(), packet.number(), packet.attributes()
        flags = {1: os.O_RDONLY, 2: os.O_WRONLY, 3: os.O_RDWR}.get(wanted & 3, os.O_RDONLY)
        for bit, flag in ((4, os.O_APPEND), (8, os.O_CREAT), (16, os.O_TRUNC), (32, os.O_EXCL)):
            flags |= flag if wanted & bit else 0
        return self.handle(os.open(path, flags | os.O_CLOEXEC, found.get(HAS_MODE, 0o666)))

    def close(self, packet: Packet) -> None:
        """Close a handle."""
        found = self.handles.pop(packet.text(), None)
        if found is None:
            raise ServerError(FAILURE, "not an open handle")
        if isinstance(found, int):
            os.close(found)

    def read(self, packet: Packet) -> tuple[int, bytes]:
        """Return bytes of a file."""
        file, offset, count = self.file(packet), packet.long(), packet.number()
        data = os.pread(file, min(count, MAX_PACKET_BYTES - 1024), offset)
        if not data:
            raise ServerError(EOF, "end of file")
        return DATA, pack_text(data)

    def write(self, packet: Packet) -> None:
        """Write bytes to a file."""
        file, offset, data = self.file(packet), packet.long(), memoryview(packet.text())
        while data:
            written = os.pwrite(file, data, offset)
            data, offset = data[written:], offset + written

    def list(self, packet: Packet) -> tuple[int, bytes]:
        """Return the next entries of a folder."""
        folder = self.handles.get(packet.text())
        if not isinstance(folder, DirectoryListing):
            raise ServerError(FAILURE, "not an open folder")
        rows = []
        for name in folder.names:
            try:
                info = os.lstat(os.path.join(folder.path, name))
            except OSError:
                continue  # deleted meanwhile
            rows.append(pack_text(name) + pack_text(long_name(name, info)) + pack_attributes(info))
            if len(rows) == MAX_NAMES:
                break
        if not rows:
            raise ServerError(EOF, "no more entries")
        return NAME, struct.pack(">I", len(rows)) + b"".join(rows)

    def rename(self, packet: Packet) -> None:
        """Rename without replacing an existing file, as version 3 requires."""
        old, new = packet.path(), packet.path()
        if os.path.lexists(new):
            raise ServerError(FAILURE, "the new name exists")
        os.rename(old, new)

    def extended(self, packet: Packet) -> None:
        """Answer an extension of OpenSSH."""
        what = packet.text()
        if what == EXTENSIONS[0]:
            os.rename(packet.path(), packet.path())
        elif what == EXTENSIONS[1]:
            os.link(packet.path(), packet.path())
        elif what == EXTENSIONS[2]:
            os.fsync(self.file(packet))
        else:
            raise ServerError(UNSUPPORTED, "not supported")


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until the end of input."""
    server = Server()

    def send(kind: int, body: bytes) -> None:
        sink.write(struct.pack(">IB", len(body) + 1, kind) + body)
        sink.flush()

    while True:
        head = source.read(5)
        if len(head) < 5:
            return
        length, kind = struct.unpack(">IB", head)
        if not 1 <= length <= MAX_PACKET_BYTES:
            return
        packet = Packet(source.read(length - 1))
        if kind == 1:
            send(2, struct.pack(">I", VERSION) + b"".join(pack_text(name) + pack_text(b"1") for name in EXTENSIONS))
            continue
        number = packet.take(4)
        answer, body = server.answer(kind, packet)
        send(answer, number + body)


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
