"""``warnings``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command, help_text, takes
from gpupool.cli.options import Kind, Option
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import open_pool
from gpupool.cli.render.text import pairs
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import format_duration, parse_duration_s

EXIT_NOT_SENT = 1
NONE = "none"
MOST_OF_A_SECRET = 1_000
_MAIL, _WEBHOOK, _WHAT = "Mail", "Webhook", "What"
OPTIONS = (
    Option("smtp_host", "--smtp-host", Kind.TEXT, "The mail server; none: no mail.", _MAIL, "HOST"),
    Option("smtp_port", "--smtp-port", Kind.COUNT, "Its port; 587.", _MAIL, "PORT"),
    Option("smtp_security", "--smtp-security", Kind.TEXT, "starttls, tls or none.", _MAIL, "HOW"),
    Option("smtp_user", "--smtp-user", Kind.TEXT, "The account at the mail server; none: without.", _MAIL, "NAME"),
    Option("smtp_password", "--smtp-password-file", Kind.TEXT, "A file with its password; -: stdin.", _MAIL, "FILE"),
    Option("sender", "--sender", Kind.TEXT, "The address that mail comes from.", _MAIL, "ADDRESS"),
    Option("webhook_url", "--webhook", Kind.TEXT, "The address that gets all warnings; none: none.", _WEBHOOK, "URL"),
    Option("webhook_kind", "--webhook-kind", Kind.TEXT, "generic (JSON) or slack (text).", _WEBHOOK, "KIND"),
    Option(
        "webhook_secret", "--webhook-secret-file", Kind.TEXT, "A file with the key of signatures.", _WEBHOOK, "FILE"
    ),
    Option("before_s", "--before", Kind.TEXT, "So long before a time limit or the end of a lease.", _WHAT, "TIME"),
    Option("kinds", "--kind", Kind.MANY, "idle, time, lease, preempted; repeat for others.", _WHAT, "KIND"),
)
_FROM_FILES = {"smtp_password", "webhook_secret"}
_MAY_BE_NONE = {"smtp_host", "smtp_user", "webhook_url"}


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        help=help_text(
            "Mail and webhooks to users before their GPUs are taken.",
            ["gpupool warnings show", "gpupool warnings set --webhook https://chat.example/hook --webhook-kind slack"],
        ),
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
    app.add_typer(group, name="warnings")


def show_settings(json: AsJson = False) -> None:
    """Show where warnings go; secrets are not shown."""
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


@takes(OPTIONS)
def change(**values: Any) -> None:
    """Change where warnings go and when; what is not named stays."""
    if not values:
        raise typer.BadParameter("name what to change, for example --smtp-host mail.example")
    open_pool().patch("warnings", {name: _field(name, value) for name, value in values.items()})
    tell("the settings are changed; try them with 'gpupool warnings test'")


def _field(name: str, value: Any) -> Any:
    if name in _FROM_FILES:
        return _secret(value)
    if name == "before_s":
        return 0.0 if value in {"0", "0s"} else parse_duration_s(value)
    return "" if name in _MAY_BE_NONE and value == NONE else value


def _secret(path: str) -> str:
    """The first line of a file. Raises ``GpupoolError`` (INVALID_FILE)."""
    try:
        text = sys.stdin.read(MOST_OF_A_SECRET) if path == "-" else Path(path).read_text("utf-8")[:MOST_OF_A_SECRET]
    except (OSError, UnicodeDecodeError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"{path} cannot be read: {error}.", "Give a file with one line in it."
        ) from error
    return text.partition("\n")[0].strip()


def send_test(
    to: Annotated[str, typer.Option("--to", help="Mail to this address; to yours otherwise.", metavar="ADDRESS")] = "",
    json: AsJson = False,
) -> int:
    """Send one message each way now and say what came of it; the exit status is 1 when one was not taken."""
    attempts = open_pool().post("warnings/test", {"to": to})["attempts"]
    if json:
        show_json({"attempts": attempts})
    else:
        show(f"{attempt['way']}: {'ok, ' if attempt['ok'] else ''}{attempt['message']}" for attempt in attempts)
    return 0 if all(attempt["ok"] for attempt in attempts) else EXIT_NOT_SENT
