"""Start a program and stay attached to it: ``run`` and ``client`` on the fast path, and commands that attach.

The native program ``gpupool`` (``native/command``) may have sent the request before it started Python.
"""

# ruff: noqa: PTH115 - importing pathlib takes longer than this module

from __future__ import annotations

import os
from _socket import AF_UNIX, SOCK_STREAM, socket

from gpupool.cli.fast.launch import FINAL, Launcher
from gpupool.cli.fast.signals import SignalInbox
from gpupool.cli.fast.waiting import Interrupted
from gpupool.cli.request import request_body
from gpupool.cli.terminal import say, size, wants_terminal
from gpupool.cli.transport.local import find_transport
from gpupool.client.transport import light_json
from gpupool.client.transport.http import CONNECT_TIMEOUT_S, HttpExchange, error_of_answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpupool.cli.transport.local import PoolTransport

    Values = dict[str, Any]

# SOCKET:BODY:ANSWER:EXIT:PATH, four descriptors (EXIT may be -1) and the path of the pool's socket
EARLY_REQUEST_VARIABLE = "GPUPOOL_EARLY_REQUEST"
MEMORY_FILE = "/memfd:gpupool-request (deleted)"
MAX_FILE_BYTES = 1 << 26  # more than the arguments and the environment of a process


class EarlyRequest:
    """A submission that was sent: its ``exchange``, its ``body`` and the pool's socket.

    ``ended``: the native program was attached until the end; ``exit`` is then the EXIT frame, None if the connection
    broke. Both are made of ``end``: None before, else the payload of that frame, or nothing.
    """

    __slots__ = ("api_socket", "body", "ended", "exchange", "exit")

    def __init__(self, exchange: HttpExchange, body: Values, api_socket: str, end: bytes | None) -> None:
        self.exchange = exchange
        self.body = body
        self.api_socket = api_socket
        self.ended = end is not None
        self.exit: Values | None = light_json.loads(end) if end else None


def take_early_request() -> EarlyRequest | None:
    """Return the request that was sent for this process, or None. It can be taken once."""
    handed_over = os.environ.pop(EARLY_REQUEST_VARIABLE, "").split(":", 4)
    try:
        number, body, answer, end, api_socket = handed_over
        if os.readlink(f"/proc/self/fd/{body}") != MEMORY_FILE:
            return None  # the variable is from another process
        sock = socket(AF_UNIX, SOCK_STREAM, 0, int(number))
        os.set_inheritable(int(number), False)  # noqa: FBT003 - it takes no keyword
        sock.settimeout(CONNECT_TIMEOUT_S)
        exchange = HttpExchange(sock, _read_and_close(answer))
        fields = light_json.loads(_read_and_close(body))
        return EarlyRequest(exchange, fields, api_socket, None if end == "-1" else _read_and_close(end))
    except (OSError, ValueError):
        return None


def _read_and_close(fd: str) -> bytes:
    try:
        return os.pread(int(fd), MAX_FILE_BYTES, 0)
    finally:
        os.close(int(fd))


def run(values: Values, command: list[str]) -> int:
    """Run ``gpupool run`` and return the program's exit status. Raises ``GpupoolError``."""
    if (early := take_early_request()) is not None:
        return _run_early(early, quiet=bool(values.get("quiet")))
    body = request_body.workload_body(values, command) | {"kind": "run"}
    return (
        _run_detached(body, values) if values.get("detach") else run_attached(find_transport(start=True), body, values)
    )


def _run_early(early: EarlyRequest, *, quiet: bool) -> int:
    """Stay attached to a program that was submitted before Python started, or report its end."""
    transport = find_transport(start=True)
    if getattr(transport, "api_socket", None) != early.api_socket:
        from gpupool.domain.errors import ErrorCode, GpupoolError

        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE, "Another pool was selected while this command started.", "Run it again."
        )
    with SignalInbox() as inbox:
        launcher = Launcher(transport, inbox, tty=early.body["tty"], quiet=quiet)
        if early.ended:
            return launcher.finish(early.body, early.exchange, early.exit)
        return launcher.run(early.body, early.exchange)


def client(values: Values, command: list[str]) -> int:
    """Run ``gpupool client``: a program on the GPUs of a lease. Return its exit status. Raises ``GpupoolError``."""
    from gpupool.cli.leases import find_lease

    transport = find_transport(start=False)
    on = values.get("lease") or find_lease(transport, values.get("file"))
    body = request_body.workload_body(values, command) | {"kind": "exec", "on": on}
    body.pop("project", None)  # the program uses the project of the lease
    if values.get("linger"):
        body["linger"] = values["linger"]
    return run_attached(transport, body, values)


def run_attached(transport: PoolTransport, body: Values, values: Values) -> int:
    """Submit a program bound to this client and stay attached until it ends."""
    tty = wants_terminal(values.get("tty"))
    rows, columns = size()
    body |= {"client_bound": True, "tty": tty, "stdin": not tty, "rows": rows, "columns": columns}
    body = add_folder(transport, body, values)
    with SignalInbox() as inbox:
        return Launcher(transport, inbox, tty=tty, quiet=bool(values.get("quiet"))).run(body)


def attach_to_workload(ref: str, index: int, *, tty: bool | None = None, stdin: bool = True) -> int:
    """Attach to a workload's program until it ends or Ctrl-P Ctrl-Q, and return its exit status.

    Waits in the queue with it; leaving then does not cancel it. Raises ``GpupoolError``.
    """
    transport = find_transport(start=False)
    with SignalInbox() as inbox:
        launcher = Launcher(transport, inbox, tty=wants_terminal(tty) if stdin else False)
        try:
            detail = launcher.wait_for_existing(ref, index)
        except Interrupted as stop:
            return 128 + stop.signum
        if detail["state"] in FINAL:
            return launcher.report_end(detail)
        say(f"attached to {detail['name']}; Ctrl-P Ctrl-Q detaches and leaves it running")
        return launcher.attach(detail, index, detachable=True, stdin=stdin)


def add_folder(transport: PoolTransport, body: Values, values: Values) -> Values:
    """Add the uploaded folder to the request: always over a network, on this machine only on request."""
    if (transport.direct or "image" in body) and not (values.get("files") or values.get("lock")):
        return body
    from gpupool.cli.transport.upload import prepare_request

    return prepare_request(transport, body, values)


def _run_detached(body: Values, values: Values) -> int:
    transport = find_transport(start=True)
    answer = transport.call("POST", "/v1/workloads", add_folder(transport, body, values))
    if not answer.ok:
        raise error_of_answer(answer)
    os.write(1, f"{answer.body['id']}\n".encode())
    name = answer.body["name"]
    if not values.get("quiet"):
        say(f"{name} is {answer.body['state']}; 'gpupool logs -f {name}' shows its output")
    return 0
