"""Settings of the whole pool: policy, costs, warnings, and what the pool says of itself."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.domain.access import Role
from gpupool.domain.warning import SECRETS, MailSecurity, WarningKind, WarningSettings, WebhookKind
from gpupool.web.asked import Ask, Asked, attempt
from gpupool.web.deps import SentForm
from gpupool.web.pages import back_to
from gpupool.web.views import settings as views
from gpupool.web.views.typed import Typed

router = APIRouter()

URL = "/settings"
NOTHING = "Nothing was changed."


@router.get(URL)
async def settings(ask: Ask) -> Response:
    """All of them; who may not change the policy reads it."""
    return await _show(ask, Typed())


async def _show(ask: Asked, typed: Typed) -> Response:
    services, admin = ask.services, ask.visitor.role is Role.ADMIN
    policy, rates = services.policy.policy, services.accounting.rates
    warnings = services.warnings.settings(ask.visitor) if admin else None
    values = views.policy_values(policy) | views.rates_values(rates)
    values |= {} if warnings is None else views.warning_values(warnings)
    return ask.show(
        "settings.html",
        "Settings",
        typed.over(values),
        rules=[(rule, views.policy_text(rule, policy)) for rule in views.RULES],
        rates=rates,
        warnings=_warnings(warnings),
        info=services.info,
        nodes=len(await services.nodes.nodes()),
    )


def _warnings(found: WarningSettings | None) -> dict[str, Any] | None:
    """What the form of warnings needs beside its values."""
    if found is None:
        return None
    return {
        "secrets": views.secrets_shown(found),
        "on": found.mails or found.posts,
        "security": [(one, one) for one in MailSecurity],
        "posted": [(one, one) for one in WebhookKind],
        "kinds": list(WarningKind),
    }


@router.post(f"{URL}/policy")
async def change_policy(ask: Ask, form: SentForm) -> Response:
    """Change the policy, in force from the next decision on."""

    async def change() -> Response:
        changes = views.policy_changes(form, ask.services.policy.policy)
        if changes:
            await ask.services.policy.change(ask.visitor, changes)
        return back_to(URL, said="The policy is in force." if changes else NOTHING)

    return await attempt(form, change, lambda typed: _show(ask, typed))


@router.post(f"{URL}/rates")
async def change_rates(ask: Ask, form: SentForm) -> Response:
    """Say what GPU hours cost."""

    async def change() -> Response:
        await ask.services.accounting.set_rates(ask.visitor, views.rates_of(form))
        return back_to(URL, said="The rates are saved; reports of the past use them too.")

    return await attempt(form, change, lambda typed: _show(ask, typed))


@router.post(f"{URL}/warnings")
async def change_warnings(ask: Ask, form: SentForm) -> Response:
    """Say where warnings go."""

    async def change() -> Response:
        now = ask.services.warnings.settings(ask.visitor)
        changes = views.warning_changes(form, now)
        if changes:
            await ask.services.warnings.change(ask.visitor, changes)
        return back_to(URL, said="The settings of warnings are saved." if changes else NOTHING)

    async def again(typed: Typed) -> Response:
        return await _show(ask, Typed({n: v for n, v in typed.values.items() if n not in SECRETS}, typed.error))

    return await attempt(form, change, again)


@router.post(f"{URL}/warnings/test")
async def test_warnings(ask: Ask, form: SentForm) -> Response:
    """Send one message each way now."""
    attempts = await ask.services.warnings.test(ask.visitor, form.text("to")[:254])
    said = "; ".join(f"{one.way}: {one.message}" for one in attempts)
    return back_to(URL, said=said[:500])
