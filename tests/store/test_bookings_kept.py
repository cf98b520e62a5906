"""Bookings, labels of nodes and rules of projects come back from the database as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine
from store_values import COUNTS, NAMES, NODES, PROJECTS, SENTENCES, TIMES
from test_round_trip import with_database

from gpupool.domain.access import Project, ProjectRules
from gpupool.domain.booking import Booking
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Node
from gpupool.store import access, bookings

MANY = st.lists(NAMES, max_size=3).map(tuple)
SECONDS = st.none() | st.floats(0, 1e6)
BOOKINGS = st.builds(Booking, st.just("b1"), NAMES, MANY, TIMES, TIMES, MANY, MANY, st.floats(0, 1e6), NAMES, SENTENCES)
RULES = st.builds(ProjectRules, SECONDS, SECONDS, MANY, MANY, st.none() | COUNTS)
few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(BOOKINGS, BOOKINGS)
def test_a_booking(engine: Engine, first: Booking, second: Booking) -> None:
    def check(conn: Connection) -> None:
        for booking in (first, second):
            bookings.save_booking(conn, booking)
            assert bookings.bookings(conn) == [booking]
        bookings.delete_booking(conn, second.id)
        assert bookings.bookings(conn) == []
        with pytest.raises(GpupoolError) as caught:
            bookings.delete_booking(conn, second.id)
        assert caught.value.code is ErrorCode.UNKNOWN_BOOKING

    with_database(engine, check)


@few
@given(PROJECTS, RULES, NODES, st.dictionaries(NAMES, SENTENCES, max_size=3))
def test_rules_and_labels(
    engine: Engine, project: Project, rules: ProjectRules, node: Node, labels: dict[str, str]
) -> None:
    def check(conn: Connection) -> None:
        ruled, labelled = replace(project, rules=rules), replace(node, labels=labels)
        access.save_project(conn, ruled)
        access.save_node(conn, labelled)
        assert ruled in access.projects(conn)
        assert labelled in access.nodes(conn)

    with_database(engine, check)
