"""Commands with a pool that is older than they are."""

from __future__ import annotations

from typing import Any

import pytest

from gpupool.cli.transport.pool import PoolClient
from gpupool.domain.errors import ErrorCode, GpupoolError


class OlderPool(PoolClient):
    """A pool without the parameters ``summary`` and ``reasons``, with two pages of workloads."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def get(self, _path: str, query: Any = None, timeout_s: float = 30.0) -> Any:
        self.asked.append(query)
        for name in ("reasons", "summary"):
            if query.get(name) is not None:
                raise GpupoolError(ErrorCode.INVALID_REQUEST, f"This path has no query parameter '{name}'.", "")
        if query.get("state"):
            raise GpupoolError(ErrorCode.INVALID_REQUEST, "'state' has no such value.", "")
        return {"workloads": [len(self.asked)], "next_cursor": None if query["cursor"] else "next"}


def test_list_of_an_older_pool_has_all_fields() -> None:
    pool = OlderPool()
    assert pool.workloads({"summary": True, "reasons": True}) == [3, 4]
    assert [query["reasons"] for query in pool.asked] == [True, None, None, None]
    assert [query["summary"] for query in pool.asked] == [True, True, None, None]


def test_other_errors_are_raised() -> None:
    with pytest.raises(GpupoolError, match="no such value"):
        OlderPool().workloads({"state": "none", "summary": None})
