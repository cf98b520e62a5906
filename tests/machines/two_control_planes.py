"""Two control planes on one PostgreSQL database, and nodes: every link between them can be cut, frozen and healed.

Each control plane reaches the database and each agent through byte proxies of its own, as from a machine of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from byte_proxy import Network, Proxy, Weather
from databases import PostgresServer
from e2e_pool import PATIENCE_S, eventually, folder_for_pool
from machines_harness import AS_ROOT, ControlPlane, Machine

from gpupool.daemon.config import OFF, PoolConfig, PoolKind, save_config
from gpupool.daemon.folders import prepare_folders

SOCKET = ".s.PGSQL.5432"  # how libpq names the socket of a server in a folder


class Head(ControlPlane):
    """One control plane, with its links: to the database (``database``) and to each node (``links``)."""

    def __init__(self, root: Path, name: str, server: PostgresServer, database: str, network: Network) -> None:
        self.name = name
        (root / name).mkdir(mode=0o755)
        super().__init__(root / name, "1xT4", hasty=True)
        self._network = network
        far = server.folder / f".s.PGSQL.{server.port}"
        (self.folder / "database").mkdir()
        self.database = network.between(self.folder / "database" / SOCKET, far)
        self.links: dict[str, Proxy] = {}
        url = f"postgresql://gpupool@/{database}?host={self.folder / 'database'}&port=5432"
        kind = PoolKind.SYSTEM if AS_ROOT else PoolKind.USER
        config = PoolConfig(str(self.state), str(self.run), kind, node_name=name, dashboard=OFF, database=url)
        prepare_folders(config)
        save_config(config)

    def reach(self, nodes: Sequence[Machine]) -> None:
        """Use these nodes from now on."""
        for node in nodes:
            self.links[node.name] = self._network.between(self.folder / f"{node.name}.sock", node.run / "agent.sock")
        self.write_directory({name: link.near for name, link in self.links.items()})

    def cut(self, *nodes: str, weather: Weather = Weather.CUT) -> None:
        """Lose the way to these nodes."""
        for name in nodes:
            self.links[name].set(weather)

    def heal(self) -> None:
        for proxy in (self.database, *self.links.values()):
            proxy.set(Weather.FINE)

    def leads(self) -> bool:
        return self.health() == "ok"

    def freeze(self) -> None:
        assert self.control_plane is not None
        self.control_plane.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.control_plane is not None
        self.control_plane.send_signal(signal.SIGCONT)


class Pair:
    """Heads ``a`` and ``b``, of which ``a`` leads at first, and nodes ``n1``, ``n2``, ..."""

    def __init__(self, root: Path, server: PostgresServer, nodes: Sequence[str]) -> None:
        self.root, self.server = root, server
        self.network = Network()
        self.database = server.fresh().rpartition("/")[2]
        self.nodes = {
            f"n{number}": Machine(root, f"n{number}", gpus, f"127.0.0.{10 + number}", self.network)
            for number, gpus in enumerate(nodes, 1)
        }
        self.a, self.b = (Head(root, name, server, self.database, self.network) for name in "ab")

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        for head in (self.a, self.b):
            head.reach(list(self.nodes.values()))
        self.a.begin_control_plane()
        assert eventually(lambda: self.a.all_up(len(self.nodes))), self.a.log()
        self.b.begin_control_plane()
        assert eventually(lambda: self.b.health() == "waiting"), self.b.log()

    def close(self) -> None:
        for head in (self.a, self.b):
            head.heal()
            if head.control_plane is not None:
                head.thaw()
                head.control_plane.terminate()
        for head in (self.a, self.b):
            if head.control_plane is not None:
                head.control_plane.wait(PATIENCE_S)
        for node in self.nodes.values():
            node.end()
        self.network.close()

    def sql(self, statement: str) -> str:
        return self.server.sql(statement, self.database)


@contextmanager
def two_control_planes(server: PostgresServer, nodes: Sequence[str]) -> Iterator[Pair]:
    """Return nodes with these GPUs, all up at the first control plane; the second one is a standby."""
    with folder_for_pool() as root:
        pair = Pair(root, server, nodes)
        try:
            pair.start()
            yield pair
        finally:
            pair.close()


__all__ = ["Head", "Pair", "Weather", "two_control_planes"]
