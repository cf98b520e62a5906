"""The local user for an identity of a provider: a table of claims and rules."""

from __future__ import annotations

from typing import Any

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Role
from gpupool.domain.people.identity import ProjectRule, ProviderSettings, RoleRule, identify

ADA = {"sub": "1", "preferred_username": "Ada", "email": "ada@lab.example", "email_verified": True}
ADMINS = RoleRule("groups", "admins", Role.ADMIN)
STAFF = RoleRule("department", "physics", Role.MANAGER)


def settings(**changes: Any) -> ProviderSettings:
    return ProviderSettings("https://login.example", "gpupool", "https://gpu1.example:8443", **changes)


def who(claims: dict[str, Any], **changes: Any) -> tuple[str, Role | None, str]:
    found = identify(claims, settings(**changes), "key")
    return found.user, found.role, found.email


@pytest.mark.parametrize(
    ("changes", "claims", "expected"),
    [
        ({}, {}, ("ada", None, "ada@lab.example")),
        ({"user_claim": "sub"}, {}, ("1", None, "ada@lab.example")),
        ({"user_claim": "email", "users": (("ada@lab.example", "lovelace"),)}, {}, ("lovelace", None, ADA["email"])),
        ({}, {"email_verified": False}, ("ada", None, "")),
        ({}, {"email_verified": "true"}, ("ada", None, "")),
        ({"trust_email": True}, {"email_verified": False}, ("ada", None, "ada@lab.example")),
        ({"roles": (ADMINS,)}, {"groups": ["users", "admins"]}, ("ada", Role.ADMIN, "ada@lab.example")),
        ({"roles": (ADMINS,)}, {"groups": "admins"}, ("ada", Role.ADMIN, "ada@lab.example")),
        ({"roles": (ADMINS,)}, {"groups": "not-admins"}, ("ada", Role.MEMBER, "ada@lab.example")),
        ({"roles": (ADMINS,)}, {}, ("ada", Role.MEMBER, "ada@lab.example")),
        (
            {"roles": (STAFF, ADMINS)},
            {"groups": ["admins"], "department": "physics"},
            ("ada", Role.MANAGER, ADA["email"]),
        ),
        ({"allowed_domains": ("LAB.example",)}, {}, ("ada", None, "ada@lab.example")),
    ],
)
def test_identity_is_mapped_by_rules(
    changes: dict[str, Any], claims: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    assert who({**ADA, **claims}, **changes) == expected


def test_groups_give_memberships() -> None:
    rules = (ProjectRule("groups", "lab-a", "vision"), ProjectRule("groups", "lab-b", "nlp"))
    found = identify({**ADA, "groups": ["lab-a", "others"]}, settings(projects=rules), "key")
    assert (found.member_of, found.not_member_of) == ({"vision"}, {"nlp"})
    both = (*rules, ProjectRule("groups", "others", "nlp"))  # one matching rule is enough
    assert identify({**ADA, "groups": ["others"]}, settings(projects=both), "key").member_of == {"nlp"}
    assert identify(ADA, settings(), "key").not_member_of == frozenset()


@pytest.mark.parametrize(
    ("changes", "claims", "why"),
    [
        ({"allowed_domains": ("lab.example",)}, {"email": "ada@evil.example"}, "domain"),
        ({"allowed_domains": ("lab.example",)}, {"email": "ada@sub.lab.example"}, "domain"),
        ({"allowed_domains": ("lab.example",)}, {"email": "ada@lab.example@evil.example"}, "domain"),
        ({"allowed_domains": ("lab.example",)}, {"email_verified": False}, "domain"),
        ({"allowed_domains": ("lab.example",)}, {"email": None}, "domain"),
        ({"user_claim": "email"}, {"email_verified": False}, "verified"),
        ({"user_claim": "email"}, {}, "cannot be a user"),
        ({"user_claim": "nickname"}, {}, "missing"),
        ({}, {"preferred_username": ""}, "missing"),
        ({}, {"preferred_username": ["ada"]}, "missing"),
        ({}, {"preferred_username": "../ada"}, "cannot be a user"),
        ({}, {"preferred_username": "ada\n"}, "cannot be a user"),
        ({"roles": (ADMINS,), "default_role": None}, {"groups": []}, "groups"),
        ({"roles": (ADMINS,), "default_role": None}, {"groups": {"admins": True}}, "groups"),
    ],
)
def test_rules_refuse_other_identities(changes: dict[str, Any], claims: dict[str, Any], why: str) -> None:
    with pytest.raises(GpupoolError, match=why) as refused:
        who({**ADA, **claims}, **changes)
    assert refused.value.code is ErrorCode.FORBIDDEN
    assert refused.value.hint


def test_secret_is_not_logged_with_settings() -> None:
    assert "hush" not in repr(settings(client_secret="hush"))
