"""``dashboard``: the pool in a browser, and who is signed in there."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import open_pool, segment
from gpupool.domain.errors import ErrorCode, GpupoolError


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool dashboard",
        "gpupool dashboard --no-open          only print the link",
        "gpupool dashboard --sessions         who is signed in",
    )(dashboard)


def dashboard(
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the link and open nothing.")] = False,
    sessions: Annotated[bool, typer.Option("--sessions", help="List the browsers that are signed in.")] = False,
    end: Annotated[str | None, typer.Option("--end", metavar="SESSION", help="Sign one of them out.")] = None,
    json: AsJson = False,
) -> None:
    """Open the dashboard in your browser, signed in: by a link that works once, within a minute."""
    if end is not None:
        open_pool().delete(f"sessions/{segment(end)}")
        tell(f"session {end} is ended")
    elif sessions:
        _show_sessions(as_json=json)
    else:
        _open(as_json=json, only_print=no_open)


def _open(*, as_json: bool, only_print: bool) -> None:
    pool = open_pool()
    made = pool.post("dashboard/links", _for_whom())
    remote = None if pool.gate.direct else pool.gate.url  # of the head that made the link
    url = f"{remote}{made['path']}" if remote else made["url"]
    if url is None:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            "The dashboard is not served on this machine.",
            "Start the pool with 'gpupool up --dashboard 127.0.0.1:8470', or use its network address and a token.",
        )
    if as_json:
        show_json({"url": url, "expires_at": made["expires_at"]})
        return
    # Over the network the kernel cannot say whose browser follows the link, and arguments of programs are seen by
    # everybody on the machine: there it is only printed.
    opened = not (only_print or remote) and _open_browser(url)
    if not opened:
        show([url])
    left_s = max(0, round(made["expires_at"] - time.time()))
    tell("opened in your browser" if opened else f"open this link within {left_s} s; it works once")


def _for_whom() -> dict[str, Any]:
    """With sudo the browser is that of whoever called."""
    sudo = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return {"browser_uid": int(sudo)} if sudo.isdecimal() and len(sudo) < 11 else {}


def _open_browser(url: str) -> bool:
    """Whether a browser with windows was found; one in the terminal would be of little use."""
    import webbrowser

    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


def _show_sessions(*, as_json: bool) -> None:
    found = open_pool().get("sessions")
    if as_json:
        show_json(found)
        return
    from gpupool.cli.render.people import session_lines

    show(session_lines(found["sessions"], time.time(), out_style()))
