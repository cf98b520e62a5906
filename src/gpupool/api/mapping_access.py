"""From projects, users and tokens to what the API answers."""

from __future__ import annotations

from typing import Any

from gpupool.api import schemas as view
from gpupool.domain.access import Project, ProjectRules, Token, User


def project_view(project: Project, allocated_permille: int, queued: int) -> view.ProjectView:
    """A project and what it holds and waits for now."""
    return view.ProjectView(
        name=project.name,
        quota_permille=project.quota_permille,
        over_quota=project.over_quota,
        limit_permille=project.limit_permille,
        user_limit_permille=project.user_limit_permille,
        members=list(project.members),
        max_time_s=project.max_time_s,
        idle_timeout_s=project.idle_timeout_s,
        note=project.note,
        compute_default=project.compute_default,
        compute_allowed=list(project.compute_allowed),
        sharing_default=project.sharing_default,
        sharing_allowed=list(project.sharing_allowed),
        rules=_rules_view(project.rules),
        department=project.department,
        weight=project.weight,
        model_quotas=dict(project.model_quotas),
        allocated_permille=allocated_permille,
        queued=queued,
    )


def _rules_view(rules: ProjectRules) -> view.RulesView:
    return view.RulesView(
        min_runtime_s=rules.min_runtime_s,
        max_time_limit_s=rules.max_time_limit_s,
        windows=list(rules.windows),
        node_pools=list(rules.node_pools),
        max_gpus_permille=rules.max_gpus_permille,
        images=list(rules.images),
        volumes=list(rules.volumes),
    )


def user_view(user: User) -> view.UserView:
    """A user."""
    return view.UserView(
        name=user.name,
        role=user.role,
        uid=user.uid,
        gpu_limit_permille=user.gpu_limit_permille,
        disabled=user.disabled,
        email=user.email,
    )


def token_view(token: Token) -> view.TokenView:
    """A token without its secret."""
    return view.TokenView(**_token_fields(token))


def new_token_view(token: Token, secret: str) -> view.NewTokenView:
    """A token with the secret that is shown this once."""
    return view.NewTokenView(**_token_fields(token), secret=secret)


def _token_fields(token: Token) -> dict[str, Any]:
    shown = view.TokenView.model_fields
    return {name: getattr(token, name) for name in shown}
