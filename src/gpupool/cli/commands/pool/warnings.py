"""``warnings``: mail and webhooks before GPUs are released."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command, with_options
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.text import pairs
from gpupool.cli.transport.pool import open_pool
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import format_duration, parse_duration_s
from gpupool.specs.job_options import Option, OptionKind

EXIT_NOT_SENT = 1
NONE = "none"
MAX_SECRET_CHARS = 1_000
_MAIL, _WEBHOOK, _CONTENT = "Mail", "Webhook", "Content"
OPTIONS = (
    Option("smtp_host", "--smtp-host", OptionKind.TEXT, "Set the mail server; none: no mail.", _MAIL, "HOST"),
    Option("smtp_port", "--smtp-port", OptionKind.COUNT, "Set its port; 587.", _MAIL, "PORT"),
    Option(
        "smtp_security", "--smtp-security", OptionKind.TEXT, "Set its encryption: starttls, tls or none.", _MAIL, "HOW"
    ),
    Option("smtp_user", "--smtp-user", OptionKind.TEXT, "Set the account; none: no account.", _MAIL, "NAME"),
    Option(
        "smtp_password",
        "--smtp-password-file",
        OptionKind.TEXT,
        "Read its password from a file; -: stdin.",
        _MAIL,
        "FILE",
    ),
    Option("sender", "--sender", OptionKind.TEXT, "Set the sender of mail.", _MAIL, "ADDRESS"),
    Option("webhook_url", "--webhook", OptionKind.TEXT, "Send all warnings to this URL; none: off.", _WEBHOOK, "URL"),
    Option(
        "webhook_kind",
        "--webhook-kind",
        OptionKind.TEXT,
        "Set the format: generic (JSON) or slack (text).",
        _WEBHOOK,
        "KIND",
    ),
    Option(
        "webhook_secret",
        "--webhook-secret-file",
        OptionKind.TEXT,
        "Read the signature key from this file.",
        _WEBHOOK,
        "FILE",
    ),
    Option(
        "before_s", "--before", OptionKind.TEXT, "Warn this long before a time limit or lease end.", _CONTENT, "TIME"
    ),
    Option("kinds", "--kind", OptionKind.REPEATED, "Send idle, time, lease, preempted; repeatable.", _CONTENT, "KIND"),
)
_FROM_FILES = {"smtp_password", "webhook_secret"}
_MAY_BE_NONE = {"smtp_host", "smtp_user", "webhook_url"}


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(
        app,
        "warnings",
        "Configure mail and webhooks that warn users before they lose GPUs.",
        "gpupool warnings show",
        "gpupool warnings set --webhook https://chat.example/hook --webhook-kind slack",
    )
    command(group, "gpupool warnings show", "gpupool warnings show --json", name="show")(show_settings)
    command(
        group,
        "gpupool warnings set --smtp-host mail.example --sender gpupool@example.org",
        "gpupool warnings set --smtp-user gpupool --smtp-password-file password.txt",
        "gpupool warnings set --webhook https://chat.example/hook --webhook-kind slack",
        "gpupool warnings set --before 30m --kind idle --kind time",
        "gpupool warnings set --webhook none",
        name="set",
    )(change)
    command(group, "gpupool warnings test", "gpupool warnings test --to ada@example.org", name="test")(send_test)


def show_settings(json: AsJson = False) -> None:
    """Show the settings of warnings, without secrets."""
    found = open_pool().get("warnings")
    if json:
        show_json(found)
    else:
        show(pairs(_rows(found), out_style()))


def _rows(found: dict[str, Any]) -> list[tuple[str, object]]:
    server = f"{found['smtp_host']}:{found['smtp_port']} ({found['smtp_security']})" if found["smtp_host"] else "off"
    secret = "signed" if found["webhook_secret"] else "not signed"
    webhook = f"{found['webhook_url']} ({found['webhook_kind']}, {secret})" if found["webhook_url"] else "off"
    return [
        ("Mail", server),
        ("From", found["sender"]),
        ("Account", found["smtp_user"]),
        ("Password", found["smtp_password"]),
        ("Webhook", webhook),
        ("Before", format_duration(found["before_s"])),
        ("Of", ", ".join(found["kinds"]) or "nothing"),
    ]


@with_options(OPTIONS)
def change(**values: Any) -> None:
    """Change the settings of warnings; other settings stay."""
    if not values:
        raise typer.BadParameter("give a setting, for example --smtp-host mail.example")
    open_pool().patch("warnings", {name: _field(name, value) for name, value in values.items()})
    notify("settings changed; test them with 'gpupool warnings test'")


def _field(name: str, value: Any) -> Any:
    if name in _FROM_FILES:
        return _secret(value)
    if name == "before_s":
        return 0.0 if value in {"0", "0s"} else parse_duration_s(value)
    return "" if name in _MAY_BE_NONE and value == NONE else value


def _secret(path: str) -> str:
    """Return the first line of a file. Raises ``GpupoolError`` (INVALID_FILE)."""
    try:
        text = sys.stdin.read(MAX_SECRET_CHARS) if path == "-" else Path(path).read_text("utf-8")[:MAX_SECRET_CHARS]
    except (OSError, UnicodeDecodeError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{path} cannot be read: {error}.", "Give a file with one line in it."
        ) from error
    return text.partition("\n")[0].strip()


def send_test(
    to: Annotated[str, typer.Option("--to", help="Send mail to this address; default: yours.", metavar="ADDRESS")] = "",
    json: AsJson = False,
) -> int:
    """Send a test message by mail and webhook; exit status 1 if one failed."""
    attempts = open_pool().post("warnings/test", {"to": to})["attempts"]
    if json:
        show_json({"attempts": attempts})
    else:
        show(f"{attempt['way']}: {'ok, ' if attempt['ok'] else ''}{attempt['message']}" for attempt in attempts)
    return 0 if all(attempt["ok"] for attempt in attempts) else EXIT_NOT_SENT
