"""Mail to a real SMTP server and posts to a real web server."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from mail_server import hook_server, mail_server

from gpupool.api.server.tls import CertificateFiles, ensure_self_signed
from gpupool.domain.people.warning import MailSecurity, WarningSettings
from gpupool.messaging import NetworkCourier
from gpupool.services.ports.courier import Letter, UndeliveredError

LETTER = Letter("ann@example.org", "gpupool: train lies idle", "Ann,\n\n.\nwith a lone dot, and é\n")


def settings(port: int, **changes: object) -> WarningSettings:
    found = {"smtp_host": "127.0.0.1", "smtp_port": port, "smtp_security": "none", "sender": "pool@example.org"}
    return WarningSettings.from_dict({**found, **changes})


def mailed(wanted: WarningSettings, letter: Letter = LETTER) -> None:
    asyncio.run(NetworkCourier().mail(wanted, letter))


def refused(wanted: WarningSettings, letter: Letter = LETTER) -> UndeliveredError:
    with pytest.raises(UndeliveredError) as caught:
        mailed(wanted, letter)
    return caught.value


def test_mail_is_delivered_complete() -> None:
    with mail_server() as server:
        mailed(settings(server.port))
    ((to, message),) = server.mails
    assert (to, message["To"], message["From"]) == ("ann@example.org", "ann@example.org", "pool@example.org")
    assert message["Subject"] == "gpupool: train lies idle"
    assert message["Auto-Submitted"] == "auto-generated"
    payload = message.get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert payload.decode().replace("\r\n", "\n") == LETTER.text


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Create a certificate for 127.0.0.1 that this process trusts."""
    files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    ensure_self_signed(files, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(files.certificate))
    return context


def test_credentials_are_sent_only_encrypted(tls: ssl.SSLContext) -> None:
    with mail_server(tls=tls, account=("pool", "hush")) as server:
        wanted = {"smtp_security": MailSecurity.STARTTLS, "smtp_user": "pool", "smtp_password": "hush"}
        mailed(settings(server.port, **wanted))
        assert server.secure == [True]
        error = refused(settings(server.port, **wanted | {"smtp_password": "wrong"}))
        assert not error.again
        assert "wrong" not in error.message


def test_unencrypted_or_untrusted_server_gets_no_password(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"smtp_security": MailSecurity.STARTTLS, "smtp_user": "pool", "smtp_password": "hush"}
    with mail_server(account=("pool", "hush")) as server:
        assert not refused(settings(server.port, **wanted)).again
        assert server.logins == []
    monkeypatch.delenv("SSL_CERT_FILE")
    with mail_server(tls=tls, account=("pool", "hush")) as server:
        assert "secure" in refused(settings(server.port, **wanted)).message
        assert server.logins == []


@pytest.mark.parametrize(("said", "again"), [("550 no such user", False), ("451 later", True)])
def test_answer_of_server_decides_about_retry(said: str, again: bool) -> None:
    with mail_server(refuse_recipient=said) as server:
        assert refused(settings(server.port)).again is again


def test_missing_server_is_retried_and_invalid_address_is_not() -> None:
    with mail_server() as server:
        port = server.port
        broken = Letter("ann@example.org\nBcc: all@example.org", "x", "y")
        assert not refused(settings(port), broken).again
        assert server.mails == []
    assert refused(settings(port)).again


def test_webhook_is_delivered_and_its_status_is_checked() -> None:
    async def main() -> None:
        courier = NetworkCourier()
        with hook_server() as hook:
            await courier.post(hook.url, b'{"a": 1}', {"content-type": "application/json", "x-gpupool-signature": "s"})
            assert hook.documents == [{"a": 1}]
            assert hook.posts[0][0]["x-gpupool-signature"] == "s"
            for hook.status, again in ((500, True), (429, True), (404, False), (302, False)):
                with pytest.raises(UndeliveredError) as caught:
                    await courier.post(hook.url, b"{}", {})
                assert caught.value.again is again
            assert len(hook.posts) == 5, "a redirection is not followed"
        with pytest.raises(UndeliveredError) as caught:
            await courier.post(hook.url, b"{}", {})
        assert "hush" not in caught.value.message

    asyncio.run(main())


def test_silent_server_blocks_neither_event_loop_nor_exit() -> None:
    script = """
import asyncio, socket
from gpupool.messaging import courier
courier.SMTP_TIMEOUT_S = 1000
from gpupool.domain.people.warning import WarningSettings
from gpupool.messaging import NetworkCourier
from gpupool.services.ports.courier import Letter
silent = socket.create_server(("127.0.0.1", 0))
settings = WarningSettings.from_dict(dict(smtp_host="127.0.0.1", smtp_port=silent.getsockname()[1],
    smtp_security="none", sender="pool@example.org"))
async def main():
    sending = asyncio.create_task(NetworkCourier().mail(settings, Letter("ann@example.org", "x", "y")))
    for turn in range(100):
        await asyncio.sleep(0)
    assert not sending.done()
    print("the loop went on")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "the loop went on\n", done.stderr
