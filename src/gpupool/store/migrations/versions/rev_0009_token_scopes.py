"""Add the scopes of tokens, and the token that created a token, a session or a join token."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the columns; existing tokens keep the scope ``full`` and have no parent."""
    op.add_column("tokens", sa.Column("scope", sa.String(16), nullable=False, server_default="full"))
    op.add_column("tokens", sa.Column("parent", sa.String(63), nullable=False, server_default=""))
    op.add_column("sessions", sa.Column("scope", sa.String(16), nullable=False, server_default="full"))
    op.add_column("join_tokens", sa.Column("parent", sa.String(63), nullable=False, server_default=""))
