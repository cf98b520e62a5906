"""The user's graphical browser."""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpupool.client.logins import logins_file

_PAGE = """\
<!DOCTYPE html>
<html><head><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={url}"><title>gpupool</title></head>
<body><p><a href="{url}">Continue</a></p></body></html>
"""


def open_browser(url: str) -> bool:
    """Open a graphical browser; return False if there is none."""
    import webbrowser

    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


@contextmanager
def page_that_opens(url: str) -> Iterator[str]:
    """Provide the URL of a file, readable by this user only, that redirects a browser to ``url``.

    An address with a secret cannot be an argument of the browser: all users of a machine can read arguments.
    """
    folder = Path(logins_file()).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="open-", suffix=".html", dir=folder)  # mode 0600
    page = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_PAGE.format(url=html.escape(url)))
        yield page.as_uri()
    finally:
        page.unlink(missing_ok=True)
