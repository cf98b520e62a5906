"""Stands in for the control plane: leaves a mark and answers the few questions a start asks.

As the real one, it says that the node is up only once the agent runs: the stand-in that left its mark, or a real one.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

from gpupool.unix_sockets import listen

MARKS, SOCKET = Path(sys.argv[1]), Path(sys.argv[2])
ANSWERS = {
    "/v1/health": lambda: {"status": "ok", "pid": os.getpid()},
    "/v1/pool": lambda: {"version": "0.1.0", "nodes_up": int(agent_runs()), "emulated": True, "warnings": []},
    "/v1/gpus": lambda: {"gpus": [{"model": "Tesla T4"}, {"model": "Tesla T4"}, {"model": "V100"}]},
}


def agent_runs() -> bool:
    marks = (line.split() for line in MARKS.read_text().splitlines())
    if any(Path("/proc", pid).exists() for child, pid in marks if child == "agent"):
        return True
    return SOCKET.with_name("agent.sock").exists()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = ANSWERS[self.path]() if self.path in ANSWERS else None
        body = json.dumps(answer or {"error": {"code": "NOT_FOUND", "message": "no", "hint": ""}}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.close()
        self.socket = listen(self.server_address)

    def server_activate(self) -> None:
        pass


with MARKS.open("a") as file:
    file.write(f"control-plane {os.getpid()}\n")
Server(str(SOCKET), Handler).serve_forever()
