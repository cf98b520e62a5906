"""The scheduler: events in, decisions out, and a reason for every wait.

Nothing here uses a clock, the network, a disk, a database or a thread. ``scheduler`` applies events and keeps the state
between them. In a cycle every step changes the arrays of a ``session``, and ``state.undo`` reverts them.

- ``state``: nodes, GPUs, topology and shapes of requests (``cluster``), the ``queue`` by project and its
  ``user_order``, ``running`` replicas, gangs, the ``ledger`` of current use, ``decayed_usage``, node ``reservations``,
  sharing modes.
- ``fairness``: fair shares by ``water_filling``, the rules of ``fair_share``, quotas of GPU models and of whole GPUs.
- ``placement``: the suitable nodes (``node_filter``) and the best of them (``replica`` by ``scoring``); which of all
  waiting requests fit somewhere (``fit_table``).
  ``fragmentation`` and ``packing_value`` score a place against the ``demand_profile``.
- ``holds``: GPUs kept for starving work and backfill (``starvation``, ``settlement``), and the ``runtime_model``.
- ``eviction``: ``actions`` evict for waiting work: ``reclaim`` between projects and ``preemption`` inside one, with
  ``planner`` and the victim searches; ``time_slicing``, ``reserved_nodes`` and ``consolidation`` evict for other
  reasons; ``notices`` explain it.
- ``explain``: why a replica waits (``wait_reason`` by ``wait_rules``), ``suggestions``, the ``estimate`` of its start,
  dry runs (``plan``), ``feasibility`` and the ``share_report``.
- ``allocate`` grants free GPUs in ``scheduling_order``; ``gang_placement`` finds places for several replicas at once.
  ``values`` are the inputs and outputs, ``policy`` the settings of administrators.
"""
