"""The pool's scheduling policy: kept in the store, changed while the pool runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import structlog

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.scheduling.policy import Policy
from gpupool.services.demand import MOST_RUNS
from gpupool.services.engine import Engine
from gpupool.services.permissions import Permissions

log = structlog.get_logger("gpupool.policy")


class PolicyService:
    """Reading is for everybody, changing for administrators."""

    def __init__(self, engine: Engine, permissions: Permissions) -> None:
        self._engine = engine
        self._permissions = permissions
        self._policy = Policy()

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    async def load(self) -> None:
        """Take over what the store holds; a policy that cannot be read is the default one, and said in the log."""
        text = await self._engine.ports.store.load_policy()
        if text is not None:
            try:
                self._policy = Policy.from_dict(json.loads(text))
            except (ValueError, TypeError, AttributeError, GpupoolError):
                log.exception("the scheduling policy cannot be read; the default one is in force")
        await self._put_in_force()

    async def change(self, actor: Actor, changes: dict[str, Any]) -> Policy:
        """Change some of it, in force from the next decision on. Raises FORBIDDEN, INVALID_REQUEST."""
        self._permissions.need_role(actor, Role.ADMIN)
        policy = replace(self._policy, **changes)
        what = ", ".join(f"{name} {value}" for name, value in sorted(changes.items()))
        event = Event(self._engine.ports.clock.now(), actor.user, Reason.CHANGED, what, target="policy")

        async def write() -> None:
            await self._engine.ports.store.save_policy(json.dumps(policy.to_dict()), event)
            self._policy = policy
            await self._put_in_force()

        await self._engine.alone(write)
        self._engine.work.set()
        return policy

    async def _put_in_force(self) -> None:
        """How use is forgotten is a part of it: what was used is read again."""
        demand = self._engine.demand
        demand.set_policy(self._policy)
        store = self._engine.ports.store
        demand.remember(await store.past_leases(demand.remembers_since), await store.past_runs(MOST_RUNS))
