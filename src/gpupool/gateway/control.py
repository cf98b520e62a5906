"""The connection to the control plane, and the stored table for the time without one."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

from gpupool.domain.protocol.gateway_table import (
    MAX_LINE_BYTES,
    MessageError,
    Report,
    Table,
    decode_command,
    encode,
)
from gpupool.gateway.hub import Hub, log

STORE_DELAY_S = 0.5  # changes come in groups
MAX_UNSENT_BYTES = 4 << 20  # of reports to a control plane that does not read


class StoredTable:
    """The last table in a private file. It has digests of tokens, not tokens."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Table | None:
        """Return the stored table; None if there is none or it cannot be read."""
        try:
            with self._path.open("rb") as file:
                command = decode_command(file.read(MAX_LINE_BYTES + 1))
        except FileNotFoundError:
            return None
        except (OSError, MessageError) as error:
            log.warning("the stored table %s cannot be used: %s", self._path, error)
            return None
        return command if isinstance(command, Table) else None

    def store(self, table: Table) -> None:
        """Replace the stored table."""
        temporary = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(encode(table))
            temporary.replace(self._path)
        except OSError as error:
            log.warning("the table cannot be stored: %s", error)


class ControlServer:
    """Receives commands over the unix socket. The latest connection counts: an earlier control plane is gone."""

    def __init__(self, hub: Hub, stored: StoredTable) -> None:
        self._hub = hub
        self._stored = stored
        self._server: asyncio.AbstractServer | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._storing: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()  # set while no control plane is connected
        self._idle.set()
        self._attached = False  # whether this control plane has sent its table

    async def start(self, sock: socket.socket) -> None:
        """Accept connections on a listening unix socket."""
        self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=MAX_LINE_BYTES)

    async def close(self) -> None:
        """Stop listening, end the connection, and store the table if it has changed."""
        if self._server is not None:
            self._server.close()
        if self._writer is not None:
            self._writer.close()
        await self._idle.wait()
        if self._storing is not None:
            self._storing.cancel()
            self._store()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = writer
        self._attached = False
        self._idle.clear()
        log.info("a control plane is connected")
        try:
            while (line := await reader.readline()) and self._writer is writer:
                self._apply(line)
        except (MessageError, ValueError) as error:
            log.warning("the connection of the control plane is closed: %s", error)
        except OSError as error:
            log.info("the connection of the control plane broke: %s", error)
        finally:
            if self._writer is writer:
                self._writer = None
                self._idle.set()
                self._hub.attach(None)
                log.info("no control plane is connected; the last table stays in use")
            with suppress(OSError):
                writer.close()

    def _apply(self, line: bytes) -> None:
        command = decode_command(line)
        if not self._attached and not isinstance(command, Table):
            raise MessageError("type: the whole table must come first")
        if not self._hub.apply(command):
            raise MessageError(f"version: {command.version} does not follow {self._hub.version}")
        if not self._attached:
            self._attached = True
            self._hub.attach(self._send)
        if self._storing is None:
            self._storing = asyncio.get_running_loop().call_later(STORE_DELAY_S, self._store)

    def _send(self, report: Report) -> bool:
        writer = self._writer
        if writer is None or writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            return False
        writer.write(encode(report))
        return True

    def _store(self) -> None:
        self._storing = None
        self._stored.store(Table(max(0, self._hub.version), tuple(self._hub.routes.values())))
