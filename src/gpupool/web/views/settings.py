"""What an administrator decides for the whole pool: policy, costs, warnings; with words for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpupool.api.schemas.policy import PolicyChange
from gpupool.api.schemas.warnings import WarningSettingsChange
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Placement
from gpupool.domain.units import format_duration
from gpupool.domain.usage import CostRates
from gpupool.domain.warning import SECRETS, MailSecurity, WarningKind, WarningSettings, WebhookKind
from gpupool.scheduling.order import Order
from gpupool.scheduling.policy import Policy
from gpupool.web.deps import Form
from gpupool.web.views import typed

NEVER = "never"


@dataclass(frozen=True, slots=True)
class Rule:
    """One field of the policy: its name, a title, and what it does. ``never``: it may be turned off."""

    name: str
    title: str
    about: str
    time: bool = True
    never: bool = False
    options: tuple[tuple[str, str], ...] = ()


RULES = (
    Rule(
        "min_runtime_s",
        "Training runs at least",
        "Training that runs is not evicted for others in this time after its start. 0: it may be at once.",
    ),
    Rule(
        "reserve_after_s",
        "Space is kept after a wait of",
        "Who needs whole GPUs, or a gang, and waits longer, gets the space that frees first kept for it.",
    ),
    Rule(
        "consolidate_after_s",
        "Others are moved together after a wait of",
        "For who waits longer for space that is free in pieces, restartable work is moved. Never: nobody is moved.",
        never=True,
    ),
    Rule(
        "stale_gang_s",
        "A broken gang waits",
        "A gang with too few members left for longer goes back to the queue as a whole.",
    ),
    Rule(
        "node_lost_after_s",
        "A silent node is lost after",
        "It then ends what may be run again elsewhere, and that is. Never: its work is waited for. 20s or more.",
        never=True,
    ),
    Rule(
        "half_life_s", "Use is forgotten by half in", "How fast past use counts less in fair shares. A minute or more."
    ),
    Rule(
        "usage_weight",
        "Past use weighs",
        "How much use lately moves what is left beyond quotas to others. 0: not at all; 1: usual.",
        time=False,
    ),
    Rule(
        "order",
        "First among equals",
        "In a project, among work of one priority.",
        time=False,
        options=(
            (Order.FAIR, "fair: who held less lately"),
            (Order.SHORTEST, "shortest: who is expected to end first"),
        ),
    ),
    Rule(
        "turn_s",
        "A turn lasts",
        "Training that ran so long makes way for work that has not had a turn. Never: it does not. A minute or more.",
        never=True,
    ),
    Rule(
        "placement",
        "Placement",
        "Of work that does not say what it wants.",
        time=False,
        options=(
            (Placement.PACK, "pack: leave what is free in useful pieces"),
            (Placement.SPREAD, "spread: where the load is least"),
        ),
    ),
)


def policy_text(rule: Rule, policy: Policy) -> str:
    """A field of the policy in words, for those who may not change it."""
    value = getattr(policy, rule.name)
    if value is None:
        return NEVER
    if rule.options:
        return dict(rule.options)[value]
    return format_duration(value) if rule.time else f"{value:g}"


def policy_values(policy: Policy) -> dict[str, Any]:
    """What the fields of the form hold."""
    return {rule.name: _typed_rule(rule, getattr(policy, rule.name)) for rule in RULES}


def _typed_rule(rule: Rule, value: Any) -> str:
    if value is None:
        return NEVER
    return typed.seconds_text(value) if rule.time else str(value) if rule.options else f"{value:g}"


def policy_changes(form: Form, policy: Policy) -> dict[str, Any]:
    """What a sent form changes of the policy. Raises ``GpupoolError``."""
    wanted = {rule.name: _rule_value(form, rule) for rule in RULES}
    typed.accepted(PolicyChange, wanted)
    return {name: value for name, value in wanted.items() if value != getattr(policy, name)}


def _rule_value(form: Form, rule: Rule) -> Any:
    if rule.options:
        kind = type(rule.options[0][0])
        return typed.choice(form, rule.name, kind) or rule.options[0][0]
    if rule.never and form.text(rule.name) in {"", NEVER}:
        return None
    return typed.needed_seconds(form, rule.name) if rule.time else typed.number(form, rule.name)


# Costs


def rates_values(rates: CostRates) -> dict[str, Any]:
    """What the fields of the form hold."""
    return {
        "currency": rates.currency,
        "default_rate": "" if rates.default is None else f"{rates.default:g}",
        "rates": "\n".join(f"{model}={rate:g}" for model, rate in rates.models),
    }


def rates_of(form: Form) -> CostRates:
    """The rates that a sent form asks for. Raises ``GpupoolError``."""
    currency = form.text("currency")
    if len(currency) > 8 or not currency.isprintable():
        wrong = GpupoolError(ErrorCode.INVALID_REQUEST, "A currency has at most 8 characters.", "Write EUR.")
        raise typed.FieldError("currency", wrong)
    default = typed.number(form, "default_rate") if form.text("default_rate") else None
    models = tuple(sorted((model, _rate(text)) for model, text in typed.pairs(form, "rates").items()))
    return CostRates(currency, default, models)


def _rate(text: str) -> float:
    return typed.number(Form({"rates": (text,)}), "rates")


# Warnings


def warning_values(settings: WarningSettings) -> dict[str, Any]:
    """What the fields of the form hold: no secret."""
    shown = settings.shown()
    return {
        **{name: shown[name] for name in ("smtp_host", "smtp_user", "sender")},
        **dict.fromkeys(SECRETS, ""),
        "smtp_port": str(settings.smtp_port),
        "smtp_security": str(settings.smtp_security),
        "webhook_kind": str(settings.webhook_kind),
        "before": typed.seconds_text(settings.before_s),
        "kinds": tuple(map(str, settings.kinds)),
    }


def secrets_shown(settings: WarningSettings) -> Mapping[str, str]:
    """Of each secret, only whether it is set (of a webhook, its host)."""
    shown = settings.shown()
    return {name: str(shown[name]) for name in SECRETS}


def warning_changes(form: Form, settings: WarningSettings) -> dict[str, Any]:
    """What a sent form changes; an empty secret stays, unless it is to be forgotten. Raises ``GpupoolError``."""
    wanted: dict[str, Any] = {
        "smtp_host": form.text("smtp_host"),
        "smtp_port": typed.count(form, "smtp_port") or settings.smtp_port,
        "smtp_security": typed.choice(form, "smtp_security", MailSecurity) or settings.smtp_security,
        "smtp_user": form.text("smtp_user"),
        "sender": form.text("sender"),
        "webhook_kind": typed.choice(form, "webhook_kind", WebhookKind) or settings.webhook_kind,
        "before_s": typed.needed_seconds(form, "before"),
        "kinds": typed.choices(form, "kinds", WarningKind),
    }
    for name in SECRETS:
        if form.text(name):
            wanted[name] = form.text(name)
        elif form.ticked(f"forget_{name}"):
            wanted[name] = ""
    typed.accepted(WarningSettingsChange, wanted)
    changed = {name: value for name, value in wanted.items() if value != getattr(settings, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}
