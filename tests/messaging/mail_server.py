"""Servers that take what the pool sends: SMTP with STARTTLS and accounts, and a webhook."""

from __future__ import annotations

import base64
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class MailServer:
    """Received mail, and the errors of the next deliveries."""

    tls: ssl.SSLContext | None = None
    account: tuple[str, str] | None = None
    refuse_recipient: str = ""  # the answer to RCPT
    port: int = 0
    mails: list[tuple[str, Message]] = field(default_factory=list)
    secure: list[bool] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)


@contextmanager
def mail_server(**settings: Any) -> Iterator[MailServer]:
    made = MailServer(**settings)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            Conversation(self, made).run()

    with running(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as server:
        made.port = server.server_address[1]
        yield made


class Conversation:
    """One client, as RFC 5321 has it."""

    def __init__(self, handler: socketserver.StreamRequestHandler, server: MailServer) -> None:
        self.server = server
        self.socket: Any = handler.connection
        self.file = self.socket.makefile("rb")
        self.secure = self.known = False
        self.to = ""

    def say(self, text: str) -> None:
        self.socket.sendall(f"{text}\r\n".encode())

    def run(self) -> None:
        self.say("220 ready")
        while line := self.file.readline():
            verb, _, rest = line.decode().strip().partition(" ")
            if verb.upper() == "QUIT":
                return self.say("221 bye")
            answer = getattr(self, f"on_{verb.lower()}", lambda _rest: "502 what?")(rest)
            self.say(answer)
            if verb.upper() == "STARTTLS":
                self.encrypt()
        return None

    def on_ehlo(self, _rest: str) -> str:
        offers = ["250-here"]
        offers += ["250-STARTTLS"] if self.server.tls and not self.secure else []
        offers += ["250-AUTH PLAIN"] if self.server.account else []
        return "\r\n".join([*offers, "250 8BITMIME"])

    def on_starttls(self, _rest: str) -> str:
        return "220 ready"

    def encrypt(self) -> None:
        assert self.server.tls is not None
        self.socket = self.server.tls.wrap_socket(self.socket, server_side=True)
        self.file, self.secure = self.socket.makefile("rb"), True

    def on_auth(self, rest: str) -> str:
        _, user, password = base64.b64decode(rest.partition(" ")[2]).decode().split("\0")
        self.known = (user, password) == self.server.account
        self.server.logins.append(user)
        return "235 welcome" if self.known else "535 no"

    def on_mail(self, _rest: str) -> str:
        return "250 ok" if self.known or self.server.account is None else "530 who are you?"

    def on_rcpt(self, rest: str) -> str:
        self.to = rest.partition("<")[2].partition(">")[0]
        return self.server.refuse_recipient or "250 ok"

    def on_rset(self, _rest: str) -> str:
        return "250 ok"

    def on_data(self, _rest: str) -> str:
        self.say("354 send the message")
        lines = []
        while (line := self.file.readline()) not in {b".\r\n", b""}:
            lines.append(line[1:] if line.startswith(b"..") else line)
        self.server.secure.append(self.secure)
        self.server.mails.append((self.to, message_from_bytes(b"".join(lines))))
        return "250 taken"


@dataclass
class Hook:
    """Received requests, and the status of the next answers."""

    port: int = 0
    status: int = 200
    posts: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=hush"

    @property
    def documents(self) -> list[Any]:
        return [json.loads(body) for _, body in self.posts]


@contextmanager
def hook_server() -> Iterator[Hook]:
    made = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.posts.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(made.status)
            self.send_header("location", made.url)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        made.port = server.server_address[1]
        yield made


@contextmanager
def running(server: Any) -> Iterator[Any]:
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
