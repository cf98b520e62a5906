"""Values of the settings page: policy, costs and warnings, with a description of each field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpupool.api.schemas.settings import PolicyChange, WarningSettingsChange
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Placement, SpreadRule
from gpupool.domain.people.warning import SECRETS, MailSecurity, WarningKind, WarningSettings, WebhookKind
from gpupool.domain.units import format_duration
from gpupool.domain.usage import CostRates
from gpupool.scheduling.policy import Policy
from gpupool.scheduling.state.user_order import Order
from gpupool.web.deps import Form
from gpupool.web.kit import form_input

NEVER = "never"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One field of the policy: its name, a title, and its effect.

    ``never``: it may be turned off. ``whole``: it is a whole number. ``labels``: a list of node labels.
    """

    name: str
    title: str
    about: str
    time: bool = True
    never: bool = False
    whole: bool = False
    labels: bool = False
    options: tuple[tuple[str, str], ...] = ()


RULES = (
    PolicyRule(
        "min_runtime_s",
        "Min-runtime",
        "Preemptible replicas are not preempted for this time after they start. 0: no protection.",
    ),
    PolicyRule(
        "unsaved_after_s",
        "Protect workloads without a checkpoint after",
        "Then only an explicit quota, higher priority in the project or a reservation evicts it. Never: unprotected.",
        never=True,
    ),
    PolicyRule(
        "reserve_after_s",
        "Create a hold after a wait of",
        "A workload with whole GPUs or a gang that waits longer gets the first GPUs that become free.",
    ),
    PolicyRule(
        "consolidate_after_s",
        "Consolidate after a wait of",
        "If free GPUs are fragmented, restartable workloads are moved for one that waits longer. Never: disabled.",
        never=True,
    ),
    PolicyRule(
        "stale_gang_s",
        "Incomplete gang timeout",
        "A gang with too few members for longer is queued again as a whole.",
    ),
    PolicyRule(
        "node_lost_after_s",
        "Node lost timeout",
        "The node then ends its retryable workloads, which are queued again. Never: wait for the node. At least 20s.",
        never=True,
    ),
    PolicyRule(
        "verify_idle_s",
        "Check idle GPUs every",
        "Other work preempts the checks at once; a GPU that fails is cordoned. Never: disabled. At least 1m.",
        never=True,
    ),
    PolicyRule(
        "verify_level",
        "Level of these checks",
        "1: seconds for each GPU; 2: most of the memory, copies between GPUs; 3: also a minute of load.",
        time=False,
        whole=True,
    ),
    PolicyRule("half_life_s", "Usage half-life", "After this time, past use counts half in fair shares. At least 1m."),
    PolicyRule(
        "usage_weight",
        "Usage weight",
        "How strongly past use lowers a project's share of over-quota GPUs. 0: not at all; 1: default.",
        time=False,
    ),
    PolicyRule(
        "max_queued_per_user",
        "Maximum queued replicas per user",
        "Further submissions are refused; administrators are exempt.",
        time=False,
        whole=True,
    ),
    PolicyRule(
        "max_requests_per_second",
        "Maximum requests per second and user",
        "More are refused; five times as many are accepted at once. Administrators have ten times the limit.",
        time=False,
        whole=True,
    ),
    PolicyRule(
        "order",
        "Order within a project",
        "For workloads with the same priority.",
        time=False,
        options=(
            (Order.FAIR, "fair: lower recent usage first"),
            (Order.SHORTEST, "shortest: expected to end first"),
        ),
    ),
    PolicyRule(
        "turn_s",
        "Time slice",
        "A workload that ran this long can be preempted for one that has not run yet. Never: disabled. At least 1m.",
        never=True,
    ),
    PolicyRule(
        "placement",
        "Placement",
        "For workloads without a placement request.",
        time=False,
        options=(
            (Placement.PACK, "pack: keep large blocks of GPUs free"),
            (Placement.SPREAD, "spread: use the least loaded nodes"),
        ),
    ),
    PolicyRule(
        "spread",
        "Requests for the placement spread",
        "It leaves less room for large workloads. The rules of a project take precedence.",
        time=False,
        options=((SpreadRule.ALLOW, "allow"), (SpreadRule.REFUSE, "refuse")),
    ),
    PolicyRule(
        "topology",
        "Topology",
        "Node labels, the largest domains first: block, rack. Gangs are placed in the smallest domain with room.",
        time=False,
        labels=True,
    ),
)


def policy_text(rule: PolicyRule, policy: Policy) -> str:
    """Return a policy field as text, for users who may not change it."""
    value = getattr(policy, rule.name)
    if value is None:
        return NEVER
    if rule.labels:
        return ", ".join(value)
    if rule.options:
        return dict(rule.options)[value]
    return format_duration(value) if rule.time else f"{value:g}"


def policy_values(policy: Policy) -> dict[str, Any]:
    """Return the values of the form fields."""
    return {rule.name: _typed_rule(rule, getattr(policy, rule.name)) for rule in RULES}


def _typed_rule(rule: PolicyRule, value: Any) -> str:
    if value is None:
        return NEVER
    if rule.labels:
        return ", ".join(value)
    return form_input.seconds_text(value) if rule.time else str(value) if rule.options else f"{value:g}"


def policy_changes(form: Form, policy: Policy) -> dict[str, Any]:
    """Return the policy fields that a form changes; raise ``GpupoolError``."""
    wanted = {rule.name: _rule_value(form, rule) for rule in RULES}
    form_input.validate(PolicyChange, wanted)
    return {name: value for name, value in wanted.items() if value != getattr(policy, name)}


def _rule_value(form: Form, rule: PolicyRule) -> Any:
    if rule.options:
        kind = type(rule.options[0][0])
        return form_input.choice(form, rule.name, kind) or rule.options[0][0]
    if rule.labels:
        return tuple(label.strip() for label in form.text(rule.name).split(",") if label.strip())
    if rule.never and form.text(rule.name) in {"", NEVER}:
        return None
    value = form_input.required_seconds(form, rule.name) if rule.time else form_input.number(form, rule.name)
    return int(value) if rule.whole and value is not None and value.is_integer() else value


# Costs


def rates_values(rates: CostRates) -> dict[str, Any]:
    """Return the values of the form fields."""
    return {
        "currency": rates.currency,
        "default_rate": "" if rates.default is None else f"{rates.default:g}",
        "rates": "\n".join(f"{model}={rate:g}" for model, rate in rates.models),
    }


def rates_of(form: Form) -> CostRates:
    """Read cost rates from a form; raise ``GpupoolError``."""
    currency = form.text("currency")
    if len(currency) > 8 or not currency.isprintable():
        wrong = GpupoolError(ErrorCode.INVALID_REQUEST, "A currency has at most 8 characters.", "Write EUR.")
        raise form_input.FieldError("currency", wrong)
    default = form_input.number(form, "default_rate") if form.text("default_rate") else None
    models = tuple(sorted((model, _rate(text)) for model, text in form_input.pairs(form, "rates").items()))
    return CostRates(currency, default, models)


def _rate(text: str) -> float:
    return form_input.number(Form({"rates": (text,)}), "rates")


# Warnings


def warning_values(settings: WarningSettings) -> dict[str, Any]:
    """Return the values of the form fields, without secrets."""
    shown = settings.shown()
    return {
        **{name: shown[name] for name in ("smtp_host", "smtp_user", "sender")},
        **dict.fromkeys(SECRETS, ""),
        "smtp_port": str(settings.smtp_port),
        "smtp_security": str(settings.smtp_security),
        "webhook_kind": str(settings.webhook_kind),
        "before": form_input.seconds_text(settings.before_s),
        "kinds": tuple(map(str, settings.kinds)),
    }


def secrets_shown(settings: WarningSettings) -> Mapping[str, str]:
    """Return whether each secret is set (for a webhook, its host)."""
    shown = settings.shown()
    return {name: str(shown[name]) for name in SECRETS}


def warning_changes(form: Form, settings: WarningSettings) -> dict[str, Any]:
    """Return the changes of a form; an empty secret is kept unless "Delete it" is selected."""
    wanted: dict[str, Any] = {
        "smtp_host": form.text("smtp_host"),
        "smtp_port": form_input.count(form, "smtp_port") or settings.smtp_port,
        "smtp_security": form_input.choice(form, "smtp_security", MailSecurity) or settings.smtp_security,
        "smtp_user": form.text("smtp_user"),
        "sender": form.text("sender"),
        "webhook_kind": form_input.choice(form, "webhook_kind", WebhookKind) or settings.webhook_kind,
        "before_s": form_input.required_seconds(form, "before"),
        "kinds": form_input.choices(form, "kinds", WarningKind),
    }
    for name in SECRETS:
        if form.text(name):
            wanted[name] = form.text(name)
        elif form.is_checked(f"delete_{name}"):
            wanted[name] = ""
    form_input.validate(WarningSettingsChange, wanted)
    changed = {name: value for name, value in wanted.items() if value != getattr(settings, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}
