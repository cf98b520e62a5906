"""The pool's scheduling policy, which is stored and can be changed while the pool runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import structlog

from gpupool.domain.decode import decode
from gpupool.domain.errors import GpupoolError
from gpupool.domain.people.access import Actor, Role
from gpupool.scheduling.policy import Policy
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.control.scheduler_feed import MAX_PAST_RUNS

log = structlog.get_logger("gpupool.policy")


class PolicyService:
    """The policy in force. Everybody may read it; administrators may change it."""

    def __init__(self, engine: Engine, permissions: Permissions) -> None:
        self._engine = engine
        self._permissions = permissions
        self._policy = Policy()

    @property
    def policy(self) -> Policy:
        """Return the policy in force."""
        return self._policy

    async def load(self) -> None:
        """Load the policy from the store; if it cannot be parsed, log that and use the default policy."""
        text = await self._engine.ports.store.documents.load("policy")
        if text is not None:
            try:
                self._policy = decode(Policy, json.loads(text))
            except (ValueError, TypeError, AttributeError, GpupoolError):
                log.exception("the scheduling policy cannot be read; the default policy applies")
        await self._put_in_force()

    async def change(self, actor: Actor, changes: dict[str, Any]) -> Policy:
        """Change some fields; the next decision uses them. Raises FORBIDDEN, INVALID_REQUEST."""
        self._permissions.need_role(actor, Role.ADMIN)
        policy = replace(self._policy, **changes)
        what = ", ".join(f"{name} {value}" for name, value in sorted(changes.items()))
        event = self._engine.change_event(actor.user, what, "policy")

        async def write() -> None:
            await self._engine.ports.store.documents.save("policy", json.dumps(policy.to_dict()), event)
            self._policy = policy
            await self._put_in_force()

        await self._engine.run_exclusive(write)
        self._engine.work.set()
        return policy

    async def _put_in_force(self) -> None:
        """Apply the policy, and read past use again, because the policy sets its half-life."""
        demand = self._engine.feed
        demand.set_policy(self._policy)
        store = self._engine.ports.store
        demand.remember(await store.past_leases(demand.usage_since), await store.past_runs(MAX_PAST_RUNS))
