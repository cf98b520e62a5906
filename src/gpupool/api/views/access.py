"""Views of projects, users and tokens."""

from __future__ import annotations

from gpupool.api.schemas.people import NewTokenView, ProjectView, TokenView, UserView
from gpupool.domain.people.access import Project, Token, User


def project_view(project: Project, allocated_permille: int, queued: int, gpu_hours_used: float | None) -> ProjectView:
    """Return the view of a project with its allocation, waiting GPUs, and GPU hours of this month."""
    return ProjectView.of(
        project,
        model_quotas=dict(project.model_quotas),
        allocated_permille=allocated_permille,
        queued=queued,
        gpu_hours_used=gpu_hours_used,
    )


def user_view(user: User) -> UserView:
    """Return the view of a user."""
    return UserView.of(user)


def token_view(token: Token) -> TokenView:
    """Return the view of a token without its secret."""
    return TokenView.of(token)


def new_token_view(token: Token, secret: str) -> NewTokenView:
    """Return the view of a new token with its secret, which is shown only once."""
    return NewTokenView.of(token, secret=secret)
