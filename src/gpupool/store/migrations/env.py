"""Entry point of Alembic: execute the migrations, inside the transaction that ``migrate.migrate_to`` has begun."""

from __future__ import annotations

from alembic import context

from gpupool.store.schema.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
