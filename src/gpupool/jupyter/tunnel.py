"""Channels of kernels on other machines: sockets here, each tunnelled to the kernel's socket on its node.

Both ends are Unix sockets in folders that only the user can open, so no other account of either machine can connect. On
the node a line of shell makes the folder and the connection file, from a variable that the kernel does not inherit.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection

from gpupool.client.files.port_forward import Forwarder
from gpupool.client.transport.endpoint import newer_login, resolve_endpoint
from gpupool.client.transport.websocket_dialer import WebSocketDialer

RETRY_DELAY_S = 1.0  # channels connect again at once
CONNECTION = "GPUPOOL_KERNEL_CONNECTION"
_FOLDERS = "/tmp/gpupool-kernel-"  # noqa: S108 - made by the kernel's account, mode 0700
_FILE = "connection.json"
# A restart finds its folder. Another account could have made it before: hence the check of the owner. A killed kernel
# leaves its folder, so each start deletes those of the user whose process has ended.
_START = f"""\
for old in {_FOLDERS}*; do
  [ -O "$old" ] && [ ! -L "$old" ] && pid=$(cat "$old/pid" 2>/dev/null) && [ ! -d "/proc/$pid" ] && rm -rf "$old"
done
(umask 077; [ -d "$1" ] || mkdir "$1"; [ -O "$1" ] && [ ! -L "$1" ] &&
  printf %s "${CONNECTION}" > "$1/{_FILE}" && echo $$ > "$1/pid") || {{
  echo "gpupool: the folder $1 for the kernel's sockets cannot be used" >&2
  exit 1
}}
shift
unset {CONNECTION}
exec "$@"
"""


def new_node_folder() -> str:
    """Return the path of a kernel's folder on its node: short, as paths of sockets have to be."""
    return f"{_FOLDERS}{secrets.token_hex(8)}"


def node_command(cmd: Sequence[str], connection_file: str, folder: str) -> list[str]:
    """Return the command of a kernel on its node, where its connection file is in ``folder``."""
    words = [word.replace(connection_file, f"{folder}/{_FILE}") for word in cmd]
    return ["sh", "-c", _START, "sh", folder, *words]


def node_environment(connection_info: Mapping[str, Any], folder: str) -> dict[str, str]:
    """Return the variable with the content of the connection file on the node."""
    texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in connection_info.items()}
    return {CONNECTION: json.dumps({**texts, "transport": "ipc", "ip": f"{folder}/k"})}


class RenewedDialer:
    """Opens WebSockets of the pool of this process, with a newer login to it once there is one."""

    def __init__(self) -> None:
        self._endpoint = resolve_endpoint()
        self._dialer = WebSocketDialer(self._endpoint)

    async def connect(self, target: str) -> ClientConnection:
        """Connect to a path of the API. Raises ``OSError``, ``WebSocketException``, ``TimeoutError``."""
        endpoint = await asyncio.to_thread(newer_login, self._endpoint)
        if endpoint is not None:
            self._endpoint, self._dialer = endpoint, WebSocketDialer(endpoint)
        return await self._dialer.connect(target)


class ChannelTunnel:
    """The tunnels of one kernel. Usable in any thread; the bytes flow in a thread of their own."""

    def __init__(self, workload: str, tell: Callable[[str], None]) -> None:
        dialer = RenewedDialer()
        self._forwarder = Forwarder(dialer, workload, 0, tell, activity=False, delay_s=RETRY_DELAY_S)

    def open(self, prefix: str, folder: str, ports: Sequence[int]) -> None:
        """Listen on the sockets ``prefix``-N for those of the kernel on its node. Raises ``OSError``."""
        _run(self._forwarder.listen_on_sockets([(f"{prefix}-{port}", f"{folder}/k-{port}") for port in ports]))

    def close(self) -> None:
        """Stop to listen, and close all connections."""
        _run(self._forwarder.close())


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run_coroutine_threadsafe(work, _background_loop()).result()


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that runs as long as this process: Jupyter's own may run only now and then."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gpupool-channels", daemon=True).start()
    return loop
