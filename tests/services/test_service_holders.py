"""The holders of each GPU, queried repeatedly while leases start and end."""

from __future__ import annotations

from pool_world import ANN, BOB, World


def holders(world: World) -> list[list[tuple[str, int]]]:
    (node,) = world.do(world.services.nodes.nodes())
    found = [world.do(world.services.nodes.holders(gpu.uuid)) for gpu in node.report.gpus]
    return sorted([(lease.user, share.permille) for lease, share in rows] for rows in found)


def test_holders_are_current(world: World) -> None:
    assert holders(world) == [[], []]
    first = world.do(world.submit(ANN, gpus={"fraction": 0.5}))
    assert holders(world) == [[], [("ann", 500)]]
    world.do(world.submit(BOB, gpus={"fraction": 0.25}))
    assert holders(world) == [[], [("ann", 500), ("bob", 250)]]
    world.do(world.end(first))
    assert holders(world) == [[], [("bob", 250)]]
    world.do(world.submit(ANN, gpus={"fraction": 0.5}))
    assert holders(world) == [[], [("bob", 250), ("ann", 500)]]
    world.do(world.reboot())
    assert holders(world) == [[], [("bob", 250), ("ann", 500)]]
