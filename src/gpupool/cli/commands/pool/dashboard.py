"""``dashboard``: open the dashboard, and list its sessions."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.browser import open_browser
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.transport.pool import open_pool, quote_segment
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
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the link instead of opening a browser.")] = False,
    sessions: Annotated[bool, typer.Option("--sessions", help="List the browsers that are signed in.")] = False,
    end: Annotated[str | None, typer.Option("--end", metavar="SESSION", help="Sign out this session.")] = None,
    json: AsJson = False,
) -> None:
    """Open the dashboard in your browser, signed in by a link that works once, within a minute."""
    if end is not None:
        open_pool().delete(f"sessions/{quote_segment(end)}")
        notify(f"session {end} is ended")
    elif sessions:
        _show_sessions(as_json=json)
    else:
        _open(as_json=json, only_print=no_open)


def _open(*, as_json: bool, only_print: bool) -> None:
    pool = open_pool()
    made = pool.post("dashboard/links", _for_whom())
    remote = None if pool.transport.direct else pool.transport.url  # the URL of the head that created the link
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
    # The link is an argument of the browser process, and all users of a machine can read arguments. On the pool's
    # machine the kernel identifies the browser's user. Over the network it cannot, so the link is only printed.
    opened = not (only_print or remote) and open_browser(url)
    if not opened:
        show([url])
    left_s = max(0, round(made["expires_at"] - time.time()))
    notify("opened in your browser" if opened else f"open this link within {left_s} s; it works once")


def _for_whom() -> dict[str, Any]:
    """With sudo, create the link for the user who called sudo."""
    sudo = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return {"browser_uid": int(sudo)} if sudo.isdecimal() and len(sudo) < 11 else {}


def _show_sessions(*, as_json: bool) -> None:
    found = open_pool().get("sessions")
    if as_json:
        show_json(found)
        return
    from gpupool.cli.render.people import session_lines

    show(session_lines(found["sessions"], time.time(), out_style()))
