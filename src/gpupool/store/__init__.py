"""The database of the pool: one SQLite file that a crash cannot corrupt, or PostgreSQL.

``open_store`` creates, checks or upgrades the database and returns a ``SqlStore``, which implements the ``Store``
Protocol of the services. Tables are in ``schema``, the conversion of values to rows in ``work.mapping`` and
``pool.pool_mapping``, the guarded transaction in ``work.writes``, reading in ``work.queries``, ``work.history``,
``events`` and ``usage``, everything specific to SQLite or PostgreSQL in ``backends``. Imports go from ``schema`` over
``backends``, ``migrations``, ``events``, ``pool`` and ``work`` to ``usage``, copies and ``SqlStore``.
"""

from __future__ import annotations

from gpupool.store.sql_store import SqlStore, open_database, open_store

__all__ = ["SqlStore", "open_database", "open_store"]
