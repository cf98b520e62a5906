"""A real browser for tests, which is replaced when it does not close a page: that is its fault, and not the page's."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Error, Playwright, sync_playwright
from web_harness import CHROMIUM, CHROMIUM_ARGS

from requires import require

CLOSES_S = 30.0


class Chromium:
    """Starts at the first use; ``closes_s`` is the time limit to close its pages."""

    def __init__(self, playwright: Playwright, closes_s: float = CLOSES_S) -> None:
        self._playwright, self._closes_s = playwright, closes_s
        self._mark = f"--of-test={os.getpid()}-{id(self)}"
        self._browser: Browser | None = None

    def new_context(self, **options: Any) -> BrowserContext:
        """Return a context like Playwright's ``Browser``."""
        require("chromium")
        if self._browser is None or not self._browser.is_connected():
            arguments = [*CHROMIUM_ARGS, self._mark]
            self._browser = self._playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        return self._browser.new_context(**options)

    def close(self, *contexts: BrowserContext) -> None:
        """Close these; a browser that does not is killed, with a warning, and the next context gets another."""
        with self._in_time():
            for context in contexts:
                context.close()

    def end(self) -> None:
        """Close the browser itself."""
        if self._browser is not None:
            with self._in_time():
                self._browser.close()

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        late = threading.Timer(self._closes_s, self.kill)
        late.start()
        try:
            with contextlib.suppress(Error):  # of one that is gone
                yield
        finally:
            late.cancel()

    def kill(self) -> None:
        """End its processes."""
        warnings.warn(f"Chromium did not close a page in {self._closes_s:g} s; it was killed", stacklevel=1)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Return the processes with the mark in their command."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found


@contextlib.contextmanager
def started_chromium() -> Iterator[Chromium]:
    """Yield a browser: while Playwright runs, its event loop counts as running and no other may run."""
    with sync_playwright() as playwright:
        browser = Chromium(playwright)
        yield browser
        browser.end()
