from __future__ import annotations

from collections.abc import Iterator

import pytest
from databases import KINDS, Databases, PostgresServer, postgres_server
from sqlalchemy import Engine


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as made:
        yield made


@pytest.fixture(scope="session", params=KINDS)
def databases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Databases:
    """Yield new databases of one kind; a test that uses it runs once with each kind."""
    server = request.getfixturevalue("server") if request.param == "postgresql" else None
    return Databases(tmp_path_factory.mktemp("databases"), server)


@pytest.fixture
def target(databases: Databases) -> str:
    """Return the URL of an empty database of the current schema."""
    return databases.fresh()


@pytest.fixture(scope="module")
def engine(databases: Databases) -> Iterator[Engine]:
    """Return connections to a database of the current schema that all tests of a module share."""
    made = databases.engine()
    yield made
    made.dispose()
