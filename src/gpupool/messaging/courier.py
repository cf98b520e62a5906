"""The courier that sends over the network: e-mail to a mail server, and webhooks."""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import ssl
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from threading import Thread

from gpupool.domain.people.warning import MailSecurity, WarningSettings
from gpupool.services.ports.courier import Letter, UndeliveredError

MAX_CONCURRENT_MAILS = 2
SMTP_TIMEOUT_S = 15.0  # of each answer of the server
WEBHOOK_TIMEOUT_S = 10.0
_AGAIN = {408, 425, 429}  # temporary 4xx errors


def send(settings: WarningSettings, letter: Letter) -> None:
    """Send a letter; blocks. Raises ``UndeliveredError``, with ``again`` unless the server refused permanently."""
    try:
        message = composed(settings.sender, letter)
    except ValueError as error:  # an address that is not valid in a header
        raise UndeliveredError(f"the message cannot be created: {error}", again=False) from error
    try:
        with _connected(settings) as server:
            if settings.smtp_user:
                server.login(settings.smtp_user, settings.smtp_password)
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        raise UndeliveredError(
            f"the mail server refuses {letter.to}", again=not _is_permanent(error.recipients)
        ) from error
    except smtplib.SMTPAuthenticationError as error:
        raise UndeliveredError("the mail server does not accept the user and password", again=False) from error
    except smtplib.SMTPResponseException as error:
        raise UndeliveredError(f"the mail server returned {error.smtp_code}", again=error.smtp_code < 500) from error
    except smtplib.SMTPNotSupportedError as error:
        raise UndeliveredError(str(error).rstrip("."), again=False) from error
    except ssl.SSLError as error:
        raise UndeliveredError(f"no secure connection to the mail server: {error.reason}", again=False) from error
    except (OSError, smtplib.SMTPException) as error:
        raise UndeliveredError(f"the mail server cannot be reached: {error}", again=True) from error


def composed(sender: str, letter: Letter) -> EmailMessage:
    """Return the message with its headers. Raises ``ValueError`` for an address with a line break."""
    message = EmailMessage()
    message["From"] = sender
    message["To"] = letter.to
    message["Subject"] = letter.subject
    message["Date"] = formatdate(localtime=True)
    message["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2] or "localhost")
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(letter.text)
    return message


def _connected(settings: WarningSettings) -> smtplib.SMTP:
    host, port = settings.smtp_host, settings.smtp_port
    if settings.smtp_security is MailSecurity.TLS:
        return smtplib.SMTP_SSL(host, port, timeout=SMTP_TIMEOUT_S, context=ssl.create_default_context())
    server = smtplib.SMTP(host, port, timeout=SMTP_TIMEOUT_S)
    if settings.smtp_security is MailSecurity.STARTTLS:
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server


def _is_permanent(refused: dict[str, tuple[int, bytes]]) -> bool:
    return all(code >= 500 for code, _ in refused.values())


async def post_webhook(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Post; any status but 2xx is a failure, including redirections. Raises ``UndeliveredError``."""
    import httpx2  # most pools never need it

    try:
        async with (
            httpx2.AsyncClient(timeout=WEBHOOK_TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", url, content=body, headers=dict(headers)) as answer,
        ):
            status = answer.status_code  # the body is not needed
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        why = type(error).__name__  # not its text, which may contain the address
        raise UndeliveredError(f"the webhook cannot be reached ({why})", again=True) from error
    if not 200 <= status < 300:
        raise UndeliveredError(f"the webhook answered {status}", again=status >= 500 or status in _AGAIN)


class NetworkCourier:
    """Sends mail in threads, because ``smtplib`` blocks, and webhooks on the event loop."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_CONCURRENT_MAILS)

    async def mail(self, settings: WarningSettings, letter: Letter) -> None:
        """Send a letter to the mail server. Raises ``UndeliveredError``."""
        async with self._room:
            await _in_thread(lambda: send(settings, letter))

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Post to a webhook. Raises ``UndeliveredError``."""
        await post_webhook(url, body, headers)


async def _in_thread(work: Callable[[], None]) -> None:
    """Run blocking work in a daemon thread, which does not delay the exit of the process."""
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
        except BaseException as caught:  # noqa: BLE001 - raised in the waiting task
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, error)

    Thread(target=run, name="mail", daemon=True).start()
    await done
