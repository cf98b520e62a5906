"""A system pool, which runs as root, starts only programs of users with an account."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pool_world import ANN, World, refused

from gpupool.domain.errors import ErrorCode

NOBODY = replace(ANN, uid=None, via="token ab12")


@pytest.fixture
def system(world: World) -> World:
    """Return a pool that runs programs as the accounts of their users."""
    world.services.workloads.submission._as_user = True
    return world


def test_programs_of_user_without_account_are_refused_and_not_run_as_root(system: World) -> None:
    async def story() -> None:
        held = await system.submit(NOBODY, kind="lease")
        for body in ({}, {"kind": "exec", "on": held.id}, {"kind": "interactive"}):
            error = await refused(lambda body=body: system.submit(NOBODY, **body), ErrorCode.FORBIDDEN)
            assert "no account" in error.message
        assert not system.agent.running()

    system.do(story())


def test_programs_of_user_with_account_start(system: World) -> None:
    async def story() -> None:
        made = await system.submit(ANN)
        assert system.is_running(made)

    system.do(story())
