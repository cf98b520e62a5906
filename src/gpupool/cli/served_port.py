"""Reach a port of a workload from this machine: wait until it listens, tunnel it, and open it in a browser."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpupool.cli.browser import open_browser, page_that_opens
from gpupool.cli.endings import decisive_replica
from gpupool.cli.fast.launch import FINAL, Launcher, replica_of
from gpupool.cli.output import notify, show
from gpupool.cli.terminal import STDERR, is_terminal, write_stderr
from gpupool.cli.transport.pool import PoolClient, workload_path
from gpupool.domain.errors import EXIT_POOL_ERROR, ErrorCode, GpupoolError

if TYPE_CHECKING:
    from gpupool.client.files.port_forward import Forwarder

Detail = dict[str, Any]

TOKEN_VARIABLE, PORT_VARIABLE = "JUPYTER_TOKEN", "JUPYTER_PORT"
FIRST_PRIVATE_PORT = 1024
SECOND_PORT_DISTANCE = 10_000
POLL_S = 0.5
NOTICE_INTERVAL_S = 1.0
END_POLL_S = 25.0
RETRY_DELAY_S = 1.0
REPEAT_AFTER_S = 30.0  # before an error of connections is printed again
LAST_LINES = 12
NOT_READY = frozenset({ErrorCode.WRONG_STATE, ErrorCode.NOT_FOUND, ErrorCode.NODE_UNREACHABLE})


class EndedEarlyError(GpupoolError):
    """The workload ended before it listened on the port. ``output`` has its last lines."""

    def __init__(self, detail: Detail, target: PortTarget, output: Sequence[str]) -> None:
        super().__init__(
            ErrorCode.WRONG_STATE,
            f"{detail['name']} ended before it listened on {target}: {describe_end(detail)}.",
            f"See 'gpupool logs {decisive_replica(detail)}'.",
        )
        self.output = output


@dataclass(frozen=True, slots=True)
class PortTarget:
    """The port to reach: a number, or that of Jupyter, or (neither) the only port of the workload."""

    port: int | None = None
    jupyter: bool = False

    def __str__(self) -> str:
        if self.jupyter:
            return "the port of Jupyter"
        return "a port" if self.port is None else f"port {self.port}"

    def choose(self, name: str, ports: Sequence[Mapping[str, Any]], wanted: int | None) -> int | None:
        """Return the port of the workload's ports, or None if it is not there yet. Raises ``GpupoolError``.

        ``wanted`` is the port that Jupyter was asked to use. The first port is that of the oldest process.
        """
        numbers = list(dict.fromkeys(int(port["port"]) for port in ports))
        if self.port is not None:
            return self.port if self.port in numbers else None
        if self.jupyter and wanted in numbers:
            return wanted
        if self.jupyter or len(numbers) < 2:
            return numbers[0] if numbers else None
        programs = {int(port["port"]): port["program"] for port in ports}
        listed = ", ".join(f"{number} ({programs[number]})" for number in numbers[:10])
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"{name} listens on {len(numbers)} ports: {listed}.", "Name one of them."
        )


@dataclass(frozen=True, slots=True)
class TunnelOptions:
    """The local end: its port (None: any free one), whether to open a browser, and whether to print messages."""

    port: int | None = None
    browser: bool = True
    quiet: bool = False


def describe_end(detail: Mapping[str, Any]) -> str:
    """Return how a workload ended, and why: ``failed with exit status 1``, ``stopped: idle for 10 minutes``."""
    replica = replica_of(dict(detail), 0)
    reason = detail.get("reason") or {}
    message = replica.get("message") or reason.get("message") or ""
    status = "" if detail.get("exit_status") is None else f" with exit status {detail['exit_status']}"
    why = f": {str(message).rstrip('.')}" if message else ""
    return f"{detail['state']}{status}{why}"


def wait_for_port(launcher: Launcher, pool: PoolClient, detail: Detail, index: int, target: PortTarget) -> int:
    """Wait until the workload listens on the port and return its number.

    Raises ``EndedEarlyError``, ``GpupoolError``, and ``Interrupted`` after a signal.
    """
    wanted = str((detail.get("env") or {}).get(PORT_VARIABLE, ""))
    notice = _PortNotice(f"waiting until {detail['name']} listens on {target}")
    launcher.client.on_tick = notice.tick
    try:
        while True:
            port = target.choose(
                detail["name"], _ports(pool, detail["id"], index), int(wanted) if wanted.isdecimal() else None
            )
            if port is not None:
                return port
            notice.tick()
            detail = launcher.await_condition(detail["id"], "finished", POLL_S)
            if detail["state"] in FINAL:
                raise EndedEarlyError(detail, target, last_lines(pool, detail["id"], index))
    finally:
        launcher.client.on_tick = None
        notice.clear()


def _ports(pool: PoolClient, workload: str, index: int) -> list[dict[str, Any]]:
    try:
        return list(pool.get(workload_path(workload, "ports"), {"index": index})["ports"])
    except GpupoolError as error:
        if error.code in NOT_READY:
            return []
        raise


def last_lines(pool: PoolClient, workload: str, index: int) -> list[str]:
    """Return the last lines of the output of a replica; empty if they cannot be read."""
    try:
        page = pool.get(workload_path(workload, "logs"), {"index": index, "tail": LAST_LINES})
    except GpupoolError:
        return []
    data = b"".join(base64.b64decode(chunk["data"]) for chunk in page["chunks"])
    return data.decode(errors="replace").splitlines()[-LAST_LINES:]


class _PortNotice:
    """Show on stderr what is waited for, and for how long."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._since = monotonic()
        self._next = self._since + NOTICE_INTERVAL_S
        self._tty = is_terminal(STDERR)
        self._shown = False

    def tick(self) -> None:
        """Refresh the notice if the interval has passed."""
        now = monotonic()
        if now < self._next or (self._shown and not self._tty):
            return
        self._next, self._shown = now + NOTICE_INTERVAL_S, True
        if self._tty:
            write_stderr(f"\r\x1b[Kgpupool: {self._text} ({now - self._since:.0f} s)")
        else:
            notify(self._text)

    def clear(self) -> None:
        """Remove the changing line."""
        if self._tty and self._shown:
            write_stderr("\r\x1b[K")


def serve(pool: PoolClient, detail: Detail, index: int, port: int, options: TunnelOptions, token: str = "") -> int:
    """Tunnel a port until a signal (0) or the end of the workload (its exit status), and open it in a browser.

    ``token`` is Jupyter's, which the address includes.
    """
    return asyncio.run(_serve(pool, detail, index, port, options, token))


def open_through_gateway(pool: PoolClient, detail: Detail, index: int, port: int, *, browser: bool) -> int:
    """Open a link to a port through the pool's gateway in a browser, or print it; it has a secret."""
    address = str(pool.post(f"{workload_path(detail['id'], 'ports')}/{port}/open?index={index}", {})["url"])
    if browser:
        with page_that_opens(address) as page:
            if open_browser(page):
                notify("opened in your browser; the link is valid for eight hours")
                return 0
    show([address])
    return 0


async def _serve(pool: PoolClient, detail: Detail, index: int, port: int, options: TunnelOptions, token: str) -> int:
    from gpupool.client.files.port_forward import Forwarder
    from gpupool.client.transport.endpoint import resolve_endpoint

    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    forwarder = Forwarder(
        resolve_endpoint(), detail["id"], index, _rarely(notify), activity=False
    )  # an open page sends requests unasked
    local = await _listen(forwarder, options.port, port)
    address = f"http://127.0.0.1:{local}/" + (f"?token={quote(token)}" if token else "")
    ended: list[Detail] = []

    def tell_end(found: Detail) -> None:
        ended.append(found)
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=_await_end, args=(pool, detail["id"], tell_end), daemon=True).start()
    try:
        with ExitStack() as stack:
            page = stack.enter_context(page_that_opens(address)) if token and options.browser else address
            opened = options.browser and await asyncio.to_thread(open_browser, page)
            show([address])
            if not options.quiet:
                notify(f"{'opened in your browser; ' if opened else ''}Ctrl-C ends the tunnel, not {detail['name']}")
            await over.wait()
    finally:
        await forwarder.close()
    if ended:
        notify(f"{detail['name']} {describe_end(ended[0])}")
        status = ended[0].get("exit_status")
        return EXIT_POOL_ERROR if status is None else int(status)
    if not options.quiet:
        name = detail["name"]
        notify(f"{name} keeps running; 'gpupool open {name}' connects again, 'gpupool stop {name}' ends it")
    return 0


async def _listen(forwarder: Forwarder, wanted: int | None, port: int) -> int:
    """Listen on the wanted port, else on one that is the same each time if it is free, else on any.

    An open page then works again after a new connection. On the node itself the program has the first of them.
    """
    for same in (port, port + SECOND_PORT_DISTANCE) if wanted is None else ():
        if FIRST_PRIVATE_PORT <= same < 65536:
            with contextlib.suppress(GpupoolError):
                return (await forwarder.listen([(same, port)]))[0][0]
    return (await forwarder.listen([(wanted or 0, port)]))[0][0]


def _await_end(pool: PoolClient, workload: str, tell: Callable[[Detail], None]) -> None:
    """Call ``tell`` when the workload has ended. Retries while the pool does not answer."""
    while True:
        try:
            query = {"for": "finished", "timeout_s": END_POLL_S}
            detail: Detail = pool.get(workload_path(workload, "wait"), query, END_POLL_S * 2)
        except GpupoolError as error:
            if error.code is ErrorCode.UNKNOWN_WORKLOAD:
                return
            time.sleep(RETRY_DELAY_S)
            continue
        if detail["state"] in FINAL:
            tell(detail)
            return


def _rarely(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Pass on a text that was not passed on lately: a browser repeats a connection that fails."""
    said: dict[str, float] = {}

    def tell_once(text: str) -> None:
        now = monotonic()
        if now - said.get(text, -REPEAT_AFTER_S) >= REPEAT_AFTER_S:
            said[text] = now
            tell(text)

    return tell_once
