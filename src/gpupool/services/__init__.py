"""The services of the pool: submission, scheduling, reconciliation with the nodes, accounting and administration.

Services use the outside world only through Protocols, most of them in ``ports``. The composition root passes the
adapters that implement them.
"""
