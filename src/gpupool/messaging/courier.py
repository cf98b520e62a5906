"""The courier that really sends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from threading import Thread

from gpupool.domain.warning import WarningSettings
from gpupool.messaging import smtp, webhook
from gpupool.services.warnings.courier import Letter

MOST_MAILS_AT_ONCE = 2


class NetworkCourier:
    """Mail in threads, since ``smtplib`` waits; webhooks on the event loop."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MOST_MAILS_AT_ONCE)

    async def mail(self, settings: WarningSettings, letter: Letter) -> None:
        """Hand a letter to the mail server. Raises ``UndeliveredError``."""
        async with self._room:
            await _in_thread(lambda: smtp.send(settings, letter))

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Post to a webhook. Raises ``UndeliveredError``."""
        await webhook.post(url, body, headers)


async def _in_thread(work: Callable[[], None]) -> None:
    """Wait for something that blocks, in a thread that a process which ends does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:  # noqa: BLE001 - it is raised where the work is waited for
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, error)

    Thread(target=run, name="mail", daemon=True).start()
    await done
