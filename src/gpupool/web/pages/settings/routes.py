"""The settings page: policy, costs, warnings and pool information."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.domain.people.access import Role
from gpupool.domain.people.warning import SECRETS, MailSecurity, WarningKind, WarningSettings, WebhookKind
from gpupool.services.ports.storage import StoredFiles
from gpupool.services.storage import UserStorage
from gpupool.web.deps import SentForm, reads
from gpupool.web.kit.filters import size
from gpupool.web.kit.form_input import FormValues
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.page_context import AdministratorContext, Context, PageContext, handle_form
from gpupool.web.pages.settings import view as views
from gpupool.web.rendering import back_to

router = APIRouter()

URL = "/settings"
NOTHING = "No changes."


@router.get(URL)
async def settings(context: Context) -> Response:
    """Show all settings; only administrators can change them."""
    return await _show(context, FormValues())


async def _show(context: PageContext, typed: FormValues) -> Response:
    services, admin = context.services, context.visitor.role is Role.ADMIN
    policy, rates = services.policy.policy, services.accounting.rates
    warnings = services.warnings.settings(context.visitor) if admin else None
    values = views.policy_values(policy) | views.rates_values(rates)
    values |= {} if warnings is None else views.warning_values(warnings)
    return context.show(
        "settings/settings.html",
        "Settings",
        typed.with_defaults(values),
        rules=[(rule, views.policy_text(rule, policy)) for rule in views.RULES],
        rates=rates,
        warnings=_warnings(warnings),
        info=services.info,
        nodes=len(await services.nodes.nodes()),
    )


def _warnings(found: WarningSettings | None) -> dict[str, Any] | None:
    """Return what the warnings form needs in addition to its values."""
    if found is None:
        return None
    return {
        "secrets": views.secrets_shown(found),
        "on": found.mails or found.posts,
        "security": [(one, one) for one in MailSecurity],
        "posted": [(one, one) for one in WebhookKind],
        "kinds": list(WarningKind),
    }


FILE_COLUMNS: tuple[Column[StoredFiles], ...] = (
    Column("what", "Files", lambda row: row.what),
    Column(
        "size", "Size", lambda row: row.bytes, ColumnKind.BYTES,
        note=lambda row: None if row.complete else "not all counted",
    ),
    Column("kept", "Kept", lambda row: row.kept, sortable=False),
    Column("path", "Folder", lambda row: row.path, sortable=False),
)  # fmt: skip
USER_COLUMNS: tuple[Column[UserStorage], ...] = (
    Column("user", "User", lambda row: row.user or "(deleted work)", link=lambda row: _user_url(row.user)),
    Column("size", "Size", lambda row: row.bytes, ColumnKind.BYTES),
    Column("files", "Files", lambda row: ", ".join(f"{what} {size(part)}" for what, part in row.files), sortable=False),
)


def _user_url(user: str) -> str | None:
    return f"/users/{user}" if user else None


@router.get(f"{URL}/storage", dependencies=[reads(*table_names(), *table_names("u-"))])
async def storage(context: AdministratorContext) -> Response:
    """Show the disk use by kind of file and by user."""
    report = await context.services.storage.report(context.visitor)
    return context.show(
        "settings/storage.html",
        "Disk use",
        report=report,
        files=listing(context.request, FILE_COLUMNS, report.storage.files, name="files"),
        users=listing(context.request, USER_COLUMNS, report.users, name="users", prefix="u-"),
    )


@router.post(f"{URL}/policy")
async def change_policy(context: AdministratorContext, form: SentForm) -> Response:
    """Change the policy from the next scheduling decision on."""

    async def change() -> Response:
        changes = views.policy_changes(form, context.services.policy.policy)
        if changes:
            await context.services.policy.change(context.visitor, changes)
        return back_to(URL, notice="Policy saved." if changes else NOTHING)

    return await handle_form(form, change, lambda typed: _show(context, typed))


@router.post(f"{URL}/rates")
async def change_rates(context: AdministratorContext, form: SentForm) -> Response:
    """Set the cost of GPU hours."""

    async def change() -> Response:
        await context.services.accounting.set_rates(context.visitor, views.rates_of(form))
        return back_to(URL, notice="Rates saved. They also apply to reports of the past.")

    return await handle_form(form, change, lambda typed: _show(context, typed))


@router.post(f"{URL}/warnings")
async def change_warnings(context: AdministratorContext, form: SentForm) -> Response:
    """Set the destinations of warnings."""

    async def change() -> Response:
        now = context.services.warnings.settings(context.visitor)
        changes = views.warning_changes(form, now)
        if changes:
            await context.services.warnings.change(context.visitor, changes)
        return back_to(URL, notice="Warning settings saved." if changes else NOTHING)

    async def again(typed: FormValues) -> Response:
        return await _show(
            context, FormValues({n: v for n, v in typed.values.items() if n not in SECRETS}, typed.error)
        )

    return await handle_form(form, change, again)


@router.post(f"{URL}/warnings/test")
async def test_warnings(context: AdministratorContext, form: SentForm) -> Response:
    """Send a test message to each destination."""
    attempts = await context.services.warnings.test(context.visitor, form.text("to")[:254])
    said = "; ".join(f"{one.way}: {one.message}" for one in attempts)
    return back_to(URL, notice=said[:500])
