"""A server of a service, as bytes: it answers by path, and writes each request that it gets to a log.

Paths: /echo (the request as JSON), /name, /slow?N (waits), /stream?N (an event every 50 ms), /big?BYTES, /die (ends its
process at once), /die-after-head, /cut (less than announced), /close (no length), /early (answers before the body),
/interim, /raw?HEX (exactly these bytes), /ws (an upgrade that echoes bytes), /headers, /upload (counts the body).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
from pathlib import Path


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def read_body(reader: asyncio.StreamReader, fields: dict[str, str]) -> tuple[bytes, int]:
    if fields.get("transfer-encoding") == "chunked":
        parts = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readexactly(2)
        return b"".join(parts), sum(map(len, parts))
    left = count = int(fields.get("content-length", 0))
    parts = []
    while left:
        part = await reader.read(min(left, 1 << 20))
        if not part:
            raise EOFError
        left -= len(part)
        if count <= 1 << 20:
            parts.append(part)
    return b"".join(parts), count


class Server:
    def __init__(self, name: str, log: str) -> None:
        self.name = name
        self.log = Path(log).open("a", encoding="utf-8")  # noqa: SIM115 - until the end

    def note(self, **entry: object) -> None:
        self.log.write(json.dumps(entry) + "\n")
        self.log.flush()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self.one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, EOFError):
            self.note(event="disconnected")
        finally:
            writer.close()

    async def one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await read_head(reader)).decode("latin-1")
        line, *lines = head.rstrip("\r\n").split("\r\n")
        method, target, _ = line.split(" ")
        pairs = [(name.lower(), value.strip()) for name, _, value in (text.partition(":") for text in lines)]
        fields = dict(pairs)
        path, _, query = target.partition("?")
        self.note(method=method, target=target, fields=pairs)
        if path == "/early":
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nearly")
            await writer.drain()
            return False
        if fields.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if path == "/ws":
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
            while part := await reader.read(65536):
                writer.write(part)
                await writer.drain()
            writer.write(b"bye")
            writer.write_eof()
            return False
        body, count = await read_body(reader, fields)
        answer = getattr(self, "on_" + re.sub(r"\W", "_", path.strip("/").lower()), None)
        if answer is not None:
            return bool(await answer(reader, writer, query))
        document = {"name": self.name, "method": method, "target": target, "fields": pairs}
        document |= {"body": body.decode("latin-1"), "bytes": count}
        self.answer(writer, json.dumps(document).encode(), "application/json", head_only=method == "HEAD")
        await writer.drain()
        return fields.get("connection", "") != "close"

    def answer(
        self, writer: asyncio.StreamWriter, body: bytes, kind: str = "text/plain", *, head_only: bool = False
    ) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + (b"" if head_only else body))

    async def on_name(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        self.answer(writer, self.name.encode())
        return True

    async def on_slow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, query: str) -> bool:
        gone = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait({gone}, timeout=float(query or 1))
        if done:
            raise EOFError
        gone.cancel()
        self.answer(writer, self.name.encode())
        await writer.drain()
        return False

    async def on_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, query: str) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(int(query or 5)):
            event = b"data: %d\n\n" % number
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def on_big(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        left = int(query)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
        while left:
            part = min(left, 65536)
            writer.write(b"x" * part)
            await writer.drain()
            left -= part
        return True

    async def on_die(self, reader: object, writer: object, query: str) -> bool:
        os._exit(1)

    async def on_die_after_head(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        os._exit(1)

    async def on_cut(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        await writer.drain()
        return False

    async def on_head_only(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)
        return False

    async def on_close(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
        await writer.drain()
        return False

    async def on_hang_up(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        return False

    async def on_interim(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n")
        self.answer(writer, b"final")
        return True

    async def on_raw(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        writer.write(bytes.fromhex(query))
        await writer.drain()
        return False

    async def on_raw_long(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        return await self.on_raw(reader, writer, (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000).hex())

    async def on_headers(self, reader: object, writer: asyncio.StreamWriter, query: str) -> bool:
        writer.write(
            b"HTTP/1.1 302 Found\r\nLocation: /login?next=%2F\r\nSet-Cookie: own=1\r\n"
            b"Set-Cookie: gpupool-x-session=stolen\r\nSet-Cookie:  GPUPOOL-service=stolen\r\n"
            b'Service-Worker-Allowed: /\r\nAlt-Svc: h3=":443"\r\nConnection: keep-alive, X-Private\r\n'
            b"X-Private: 1\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\n\r\n"
        )
        await writer.drain()
        return True


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", required=True)
    parser.add_argument("--name", default="replica")
    options = parser.parse_args()
    server = Server(options.name, options.log)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: asyncio sets TCP_NODELAY
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", options.port))
    sock.listen(1024)
    started = await asyncio.start_server(server.serve, sock=sock, limit=1 << 20)
    print(sock.getsockname()[1], flush=True)  # noqa: T201 - the test reads it
    await started.serve_forever()


asyncio.run(main())
