"""People who sign in with a provider (OpenID Connect): their user name and role, by rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import check_name
from gpupool.domain.people.access import Role

SIGN_IN_TIMEOUT_S = 600.0  # from the redirect to the provider until the return

Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RoleRule:
    """A rule: ``value`` in the claim (a text, or a list of texts) gives the role; the first matching rule applies."""

    claim: str
    value: str
    role: Role

    def fits(self, claims: Claims) -> bool:
        """Return whether the claims match."""
        return has_value(claims, self.claim, self.value)


@dataclass(frozen=True, slots=True)
class ProjectRule:
    """A rule: people with ``value`` in the claim are members of the project, others are not."""

    claim: str
    value: str
    project: str

    def fits(self, claims: Claims) -> bool:
        """Return whether the claims match."""
        return has_value(claims, self.claim, self.value)


def has_value(claims: Claims, claim: str, value: str) -> bool:
    """Return whether a claim is a text, or a list with it."""
    found = claims.get(claim)
    return value in found if isinstance(found, list) else found == value


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """The settings of the provider that people sign in with.

    ``public_url`` is the address at which browsers reach the dashboard. ``user_claim`` names the user, unless ``users``
    maps that claim's value to a user. ``allowed_domains``: of verified e-mail addresses; empty: all. ``make_users``:
    unknown people become users. ``match_users``: a person with the name of an existing user, who is not an
    administrator, is that user. ``default_role`` is the role of new users and of people without a matching rule (None:
    refused). ``projects`` are the rules of memberships.
    """

    issuer: str
    client_id: str
    public_url: str
    client_secret: str = field(default="", repr=False)
    name: str = ""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    user_claim: str = "preferred_username"
    users: tuple[tuple[str, str], ...] = ()
    roles: tuple[RoleRule, ...] = ()
    projects: tuple[ProjectRule, ...] = ()
    allowed_domains: tuple[str, ...] = ()
    trust_email: bool = False
    make_users: bool = False
    match_users: bool = True
    default_role: Role | None = Role.MEMBER
    ca_file: str | None = None

    @property
    def title(self) -> str:
        """Return the text of the sign-in button."""
        return self.name or self.issuer.partition("://")[2].partition("/")[0]

    @property
    def redirect_uri(self) -> str:
        """Return the address to which the provider redirects browsers; it must be registered there."""
        return f"{self.public_url}/login/oidc/callback"


@dataclass(frozen=True, slots=True)
class Identity:
    """A person as the provider identifies them.

    ``key`` identifies the person at this provider permanently, even if names change; it begins with ``provider_key``.
    ``named``: the settings name the user, not the claim. ``role`` is the role by rules; None: no rules.
    ``member_of`` and ``not_member_of`` are the projects of rules that match and that do not.
    """

    key: str
    user: str
    named: bool
    role: Role | None
    email: str
    member_of: frozenset[str] = frozenset()
    not_member_of: frozenset[str] = frozenset()

    @property
    def provider_key(self) -> str:
        """Return the common beginning of the keys of this provider."""
        return self.key.partition("-")[0]


def identify(claims: Claims, settings: ProviderSettings, key: str) -> Identity:
    """Return the identity for verified claims; raise ``GpupoolError(FORBIDDEN)`` for people whom the rules refuse."""
    email = _email(claims, settings)
    value = claims.get(settings.user_claim)
    if not isinstance(value, str) or not 0 < len(value) <= 254:
        raise _refused(f"The provider does not identify you: the claim '{settings.user_claim}' is missing.")
    if settings.user_claim == "email" and not email:
        raise _refused("The provider has not verified your e-mail address.")
    named = dict(settings.users).get(value)
    inside = frozenset(rule.project for rule in settings.projects if rule.fits(claims))
    outside = frozenset(rule.project for rule in settings.projects) - inside
    return Identity(key, named or _name(value), named is not None, _role(claims, settings), email, inside, outside)


def _email(claims: Claims, settings: ProviderSettings) -> str:
    """Return the e-mail address if it is verified and its domain is allowed; empty if none is needed."""
    email = claims.get("email")
    good = isinstance(email, str) and email.count("@") == 1 and 3 <= len(email) <= 254 and email.isprintable()
    good = good and (settings.trust_email or claims.get("email_verified") is True)
    domains = {domain.lower() for domain in settings.allowed_domains}
    if domains and (not good or str(email).rpartition("@")[2].lower() not in domains):
        raise _refused("Your e-mail address is not verified, or its domain is not allowed to sign in here.")
    return str(email) if good else ""


def _name(value: str) -> str:
    name = value.lower()
    try:
        return check_name(name, "user")
    except GpupoolError as error:
        raise _refused(f"'{value[:80]}' cannot be a user's name here.") from error


def _role(claims: Claims, settings: ProviderSettings) -> Role | None:
    if not settings.roles:
        return None
    role = next((rule.role for rule in settings.roles if rule.fits(claims)), settings.default_role)
    if role is None:
        raise _refused("You are in none of the groups that may sign in here.")
    return role


def _refused(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.FORBIDDEN, sentence, "Ask an administrator of the pool.")
