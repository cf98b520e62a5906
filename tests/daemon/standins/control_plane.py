"""Stands in for the control plane: leaves a mark and answers the few questions a start asks."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

from gpupool.unix_sockets import listen

ANSWERS = {
    "/v1/health": {"status": "ok", "pid": os.getpid()},
    "/v1/pool": {"version": "0.1.0", "nodes_up": 1, "emulated": True, "warnings": []},
    "/v1/gpus": {"gpus": [{"model": "Tesla T4"}, {"model": "Tesla T4"}, {"model": "V100"}]},
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = ANSWERS.get(self.path)
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


with Path(sys.argv[1]).open("a") as file:
    file.write(f"control-plane {os.getpid()}\n")
Server(sys.argv[2], Handler).serve_forever()
