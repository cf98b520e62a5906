"""Ports for servers that a test starts in another process."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

# Below the ports that the kernel gives to connections and to servers that ask for any port, and below those that the
# pool gives to programs: nothing else gets one between the choice and the start of the server.
_PORTS = range(10_000, 20_000)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port on which nothing listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.sample(_PORTS, 100):
        with suppress(OSError), socket.create_server((host, port), family=family):
            return port
    raise AssertionError(f"no free port at {host}")
