"""The truth: everything the pool knows, in one SQLite file that a crash cannot corrupt, or in PostgreSQL.

``open_store`` creates, checks or upgrades the database and gives a ``SqlStore``, which implements the ``Store``
Protocol of the services. Tables are in ``tables``, the way of values to rows and back in ``mapping*``, the guarded
transaction in ``writes``, reading in ``queries`` and ``accounting``, what knows SQLite in ``sqlite``, what
knows PostgreSQL in ``postgres`` and ``leadership``.
"""

from __future__ import annotations

from gpupool.store.sqlstore import SqlStore, open_database, open_store

__all__ = ["SqlStore", "open_database", "open_store"]
