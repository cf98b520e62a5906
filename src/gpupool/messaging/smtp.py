"""One e-mail to a mail server."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from gpupool.domain.warning import MailSecurity, WarningSettings
from gpupool.services.warnings.courier import Letter, UndeliveredError

TIMEOUT_S = 15.0  # of each answer of the server


def send(settings: WarningSettings, letter: Letter) -> None:
    """Hand a letter over; blocks. Raises ``UndeliveredError``: again, unless the server said that it never will."""
    try:
        message = composed(settings.sender, letter)
    except ValueError as error:  # an address that cannot stand in a header
        raise UndeliveredError(f"no such message can be written: {error}", again=False) from error
    try:
        with _connected(settings) as server:
            if settings.smtp_user:
                server.login(settings.smtp_user, settings.smtp_password)
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        raise UndeliveredError(f"the mail server refuses {letter.to}", again=not _for_ever(error.recipients)) from error
    except smtplib.SMTPAuthenticationError as error:
        raise UndeliveredError("the mail server does not accept the user and password", again=False) from error
    except smtplib.SMTPResponseException as error:
        raise UndeliveredError(f"the mail server says {error.smtp_code}", again=error.smtp_code < 500) from error
    except smtplib.SMTPNotSupportedError as error:
        raise UndeliveredError(str(error).rstrip("."), again=False) from error
    except ssl.SSLError as error:
        raise UndeliveredError(f"no secure connection to the mail server: {error.reason}", again=False) from error
    except (OSError, smtplib.SMTPException) as error:
        raise UndeliveredError(f"the mail server cannot be reached: {error}", again=True) from error


def composed(sender: str, letter: Letter) -> EmailMessage:
    """The message with its headers. Raises ``ValueError`` for an address with a line break in it."""
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
        return smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context())
    server = smtplib.SMTP(host, port, timeout=TIMEOUT_S)
    if settings.smtp_security is MailSecurity.STARTTLS:
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server


def _for_ever(refused: dict[str, tuple[int, bytes]]) -> bool:
    return all(code >= 500 for code, _ in refused.values())
