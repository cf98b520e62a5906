"""People whom a provider vouches for (OpenID Connect): who they are here, and what they may do, by rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpupool.domain.access import Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import check_name

TRIP_LIFE_S = 600.0  # from leaving for the provider to coming back

Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RoleRule:
    """Whoever has ``value`` in the claim (a text, or a list of texts) has the role; the first rule that fits holds."""

    claim: str
    value: str
    role: Role

    def fits(self, claims: Claims) -> bool:
        """Whether the claims have it."""
        found = claims.get(self.claim)
        return self.value in found if isinstance(found, list) else found == self.value


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """Which provider people sign in with, and who they are here.

    ``public_url`` is the address by which browsers reach the dashboard. ``user_claim`` names the user, unless ``users``
    (by that claim's value) does. ``allowed_domains``: of verified e-mail addresses; none: all. ``make_users``: whoever
    is not known yet becomes a user. ``match_users``: whoever has the name of a user who is no administrator, is that
    user. ``default_role`` is that of new users, and of those whom no rule fits (None: they are refused).
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
    allowed_domains: tuple[str, ...] = ()
    trust_email: bool = False
    make_users: bool = False
    match_users: bool = True
    default_role: Role | None = Role.MEMBER
    ca_file: str | None = None

    @property
    def title(self) -> str:
        """What its button says."""
        return self.name or self.issuer.partition("://")[2].partition("/")[0]

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends browsers back to; it has to know this address."""
        return f"{self.public_url}/login/oidc/callback"


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody whom the provider vouches for.

    ``key`` stands for the person at this provider for ever, whatever names change; those of all its people begin with
    ``provider_key``. ``named`` says that the settings name the user, not the claim. ``role`` is that of the rules;
    None: they say nothing.
    """

    key: str
    user: str
    named: bool
    role: Role | None
    email: str

    @property
    def provider_key(self) -> str:
        """What the keys of all its people begin with."""
        return self.key.partition("-")[0]


def identify(claims: Claims, settings: ProviderSettings, key: str) -> Identity:
    """Who somebody with these checked claims is here; raises ``GpupoolError(FORBIDDEN)`` for whom the rules refuse."""
    email = _email(claims, settings)
    value = claims.get(settings.user_claim)
    if not isinstance(value, str) or not 0 < len(value) <= 254:
        raise _refused(f"The provider does not say who you are: its claim '{settings.user_claim}' is missing.")
    if settings.user_claim == "email" and not email:
        raise _refused("The provider has not verified your e-mail address.")
    named = dict(settings.users).get(value)
    return Identity(key, named or _name(value), named is not None, _role(claims, settings), email)


def _email(claims: Claims, settings: ProviderSettings) -> str:
    """The e-mail address if the provider has verified it and its domain will do; empty when none is needed."""
    email = claims.get("email")
    good = isinstance(email, str) and email.count("@") == 1 and 3 <= len(email) <= 254 and email.isprintable()
    good = good and (settings.trust_email or claims.get("email_verified") is True)
    domains = {domain.lower() for domain in settings.allowed_domains}
    if domains and (not good or str(email).rpartition("@")[2].lower() not in domains):
        raise _refused("Your e-mail address is not of a domain that may sign in here, or is not verified.")
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
