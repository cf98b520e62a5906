"""The truth on disk: everything the pool knows, in one SQLite database that a crash cannot corrupt.

``open_store`` creates, checks or upgrades the database and gives a ``SqlStore``, which implements the ``Store``
Protocol of the services. Tables are in ``tables``, the way of values to rows and back in ``mapping``, the guarded
transaction in ``writes``, reading in ``queries`` and ``accounting``, and everything that knows SQLite in ``sqlite``.
"""

from __future__ import annotations

from gpupool.store.sqlstore import SqlStore, open_store

__all__ = ["SqlStore", "open_store"]
