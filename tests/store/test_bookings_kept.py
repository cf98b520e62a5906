"""Reservations, node labels and project rules are read back unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine
from store_values import COUNTS, NAMES, NODES, PROJECTS, SENTENCES, TIMES
from test_round_trip import with_database

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Node
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.people.access import Project, ProjectRules
from gpupool.store.pool import rows
from gpupool.store.pool.nodes import save_nodes

MANY = st.lists(NAMES, max_size=3).map(tuple)
SECONDS = st.none() | st.floats(0, 1e6)
RESERVATIONS = st.builds(
    Reservation, st.just("b1"), NAMES, MANY, TIMES, TIMES, MANY, MANY, st.floats(0, 1e6), NAMES, SENTENCES
)
RULES = st.builds(ProjectRules, SECONDS, SECONDS, MANY, MANY, st.none() | COUNTS)
few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(RESERVATIONS, RESERVATIONS)
def test_reservation_is_read_back_unchanged(engine: Engine, first: Reservation, second: Reservation) -> None:
    def check(conn: Connection) -> None:
        for reservation in (first, second):
            rows.RESERVATIONS.save(conn, reservation)
            assert rows.RESERVATIONS.all(conn) == [reservation]
        rows.RESERVATIONS.delete(conn, second.id)
        assert rows.RESERVATIONS.all(conn) == []
        with pytest.raises(GpupoolError) as caught:
            rows.RESERVATIONS.delete(conn, second.id)
        assert caught.value.code is ErrorCode.UNKNOWN_BOOKING

    with_database(engine, check)


@few
@given(PROJECTS, RULES, NODES, st.dictionaries(NAMES, SENTENCES, max_size=3))
def test_rules_and_labels_are_read_back_unchanged(
    engine: Engine, project: Project, rules: ProjectRules, node: Node, labels: dict[str, str]
) -> None:
    def check(conn: Connection) -> None:
        ruled, labelled = replace(project, rules=rules), replace(node, labels=labels)
        rows.PROJECTS.save(conn, ruled)
        save_nodes(conn, [labelled])
        assert ruled in rows.PROJECTS.all(conn)
        assert labelled in rows.NODES.all(conn)

    with_database(engine, check)
