"""The use of services by token: sums, GPU time, names of tokens, and metrics."""

from __future__ import annotations

import pytest
from pool_world import ADMIN, ANN, World
from test_service_serving import new, pass_turns, serving, view

from gpupool.domain.people.access import secret_hash
from gpupool.domain.protocol.gateway_table import Load, TokenUse
from gpupool.services.metrics import catalogue as c
from gpupool.services.metrics.families import service_rows
from gpupool.services.serving.usage import shares_of


def test_gpu_time_is_shared_in_proportion_to_the_time_of_requests() -> None:
    tokens = {
        "a": TokenUse(2, busy_s=1.0),
        "b": TokenUse(1, busy_s=2.0),
        "c": TokenUse(1, 1),
        "d": TokenUse(4, busy_s=1.0),
    }
    found = shares_of(tokens, 100.0, lambda digest: ("same", "ann") if digest in "ad" else (digest, ""))
    assert [(each.token, each.use.requests, each.gpu_s) for each in found] == [
        ("same", 6, 50.0),
        ("b", 1, 50.0),
        ("c", 1, 0.0),
    ]
    assert [each.gpu_s for each in shares_of({"": TokenUse(3)}, 100.0, lambda _: ("none", ""))] == [0.0]


def test_use_is_counted_by_token_with_its_user_and_exported(world: World) -> None:
    async def story() -> None:
        row = await new(world)
        await world.services.access.put_user(ADMIN, "ann", {})
        _, secret = await serving(world).add_token(ANN, "chat")
        token, pool_secret = await world.services.access.create_token(ADMIN, user="ann", role=None, expires_in_s=3600)
        serving(world).routes.forget_tokens()
        await serving(world).routes._read_tokens()
        use = TokenUse(requests=2, errors=1, received=10, sent=20, busy_s=3.0)
        uses = {secret_hash(secret): use, token.secret_sha256: use, "f" * 64: TokenUse(1), "": TokenUse(1)}
        assert pool_secret
        for _ in range(2):
            serving(world).controller.take(Load(row.key, 0, 0, 6, 2, tokens=uses, refused=1))
        await pass_turns(world, 4)
        found = view(world)
        names = {(each.token, each.user): each.use.requests for each in found.usage}
        assert names == {("service token 1", ""): 4, (token.id, "ann"): 4, ("deleted", ""): 2, ("none", ""): 2}
        assert found.status.gpu_s > 0  # a quarter of a GPU, for some seconds
        assert sum(each.gpu_s for each in found.usage) == pytest.approx(found.status.gpu_s)
        rows = {family.metric: dict(family.rows) for family in service_rows([found])}
        assert rows[c.SERVICE_USER_REQUESTS][("default", "chat", "ann")] == 4.0
        assert rows[c.SERVICE_USER_REQUESTS][("default", "chat", "")] == 8.0
        assert rows[c.SERVICE_SENT][("default", "chat", "ann")] == 40.0
        assert rows[c.SERVICE_REFUSED][("default", "chat")] == 2.0

    world.do(story())
