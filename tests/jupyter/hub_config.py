"""The configuration of a JupyterHub for tests; the test's values are in the variables HUB_*."""

from __future__ import annotations

import os
from typing import Any

from jupyterhub.proxy import Proxy

c: Any = get_config()  # type: ignore[name-defined]  # noqa: F821 - JupyterHub gives it to the file


class NoProxy(Proxy):  # type: ignore[misc]
    """Knows the routes only, so that tests need no program of Node.js. They ask the servers themselves."""

    should_start = False
    routes: dict[str, dict[str, Any]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.routes = {}

    async def add_route(self, routespec: str, target: str, data: dict[str, Any]) -> None:
        self.routes[routespec] = {"routespec": routespec, "target": target, "data": data}

    async def delete_route(self, routespec: str) -> None:
        self.routes.pop(routespec, None)

    async def get_all_routes(self) -> dict[str, dict[str, Any]]:
        return dict(self.routes)


def tunnel_for_tess(spawner: Any) -> None:
    if spawner.user.name == "tess":
        spawner.connect = "tunnel"
    if spawner.user.name == "mia":
        spawner.cmd = ["no-such-server"]


c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.bind_url = f"http://127.0.0.1:{os.environ['HUB_UNUSED_PORT']}"
c.JupyterHub.hub_port = int(os.environ["HUB_PORT"])
c.JupyterHub.db_url = f"sqlite:///{os.environ['HUB_FOLDER']}/hub.sqlite"
c.JupyterHub.cookie_secret_file = f"{os.environ['HUB_FOLDER']}/cookie_secret"
c.JupyterHub.cleanup_servers = False
c.JupyterHub.services = [{"name": "tests", "api_token": os.environ["HUB_TOKEN"]}]
c.JupyterHub.load_roles = [
    {"name": "tests", "scopes": ["admin:users", "admin:servers", "access:servers", "proxy"], "services": ["tests"]}
]
c.JupyterHub.spawner_class = "gpupool.jupyter.spawner.GpupoolSpawner"
c.GpupoolSpawner.sizes = {"small": {"fraction": "0.1"}, "both": {"gpus": 2}, "none": {"gpus": 0}}
c.GpupoolSpawner.pre_spawn_hook = tunnel_for_tess
