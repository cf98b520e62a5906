"""``verify --network``: measure the network between the nodes by a gang with one member on each of them."""

from __future__ import annotations

import base64
import json
import secrets
from typing import Any

from gpupool.cli.endings import decisive_replica
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.text import table
from gpupool.cli.transport.pool import PoolClient, workload_path
from gpupool.domain.errors import EXIT_POOL_ERROR, ErrorCode, GpupoolError
from gpupool.domain.work.program.supervision import NODE_PROGRAM
from gpupool.verify.network import KEY_VARIABLE, NODE_VARIABLE
from gpupool.verify.results import CheckOutcome, exit_status

PROGRAM = "verify/network.py"
MAX_NODES = 16  # one role for each
MAX_TIME_S = 3600.0
KEEP = "30d"
COLUMNS = ("round_trip_ms", "send_mib_s", "receive_mib_s", "mtu_bytes", "clock_offset_ms")
HEADERS = ("FROM", "TO", "RESULT", "RTT ms", "SEND MiB/s", "RECEIVE MiB/s", "MTU", "CLOCK ms", "FINDINGS")
Json = dict[str, Any]


def verify_network(pool: PoolClient, project: str, wait: str | None, *, as_json: bool) -> int:
    """Measure, show the report and return the exit status. Raises ``GpupoolError`` with fewer than two nodes."""
    from gpupool.cli.commands.work.control import await_end

    nodes = [str(node["name"]) for node in pool.get("nodes")["nodes"] if node["state"] == "up"]
    if not 2 <= len(nodes) <= MAX_NODES:
        raise GpupoolError(
            ErrorCode.NO_CAPACITY,
            f"{len(nodes)} nodes are up; --network measures between 2 and {MAX_NODES}.",
            "See 'gpupool nodes'.",
        )
    workload = pool.post("workloads", _request(project, nodes, wait))
    notify(f"{workload['name']} measures the network between {len(nodes)} nodes")
    try:
        ended = await_end(pool, workload["id"], float("inf"))
    except KeyboardInterrupt:
        pool.post(workload_path(workload["id"], "stop"), {})
        raise
    found = _read(pool, workload["id"])
    if found is None:
        see = f"see 'gpupool describe {workload['id']}' and 'gpupool logs {decisive_replica(ended)}'"
        notify(f"{workload['name']} is {ended['state']} and has no report; {see}")
        return EXIT_POOL_ERROR
    if as_json:
        show_json(found)
    else:
        show(table(HEADERS, [_row(pair) for pair in found["pairs"]], out_style()))
        show(_all_reduce_lines(found))
    return exit_status(CheckOutcome(found["outcome"]))


def _request(project: str, nodes: list[str], wait: str | None) -> Json:
    """Return the request of a gang with one role for each node."""
    roles = [
        {"name": f"node-{number}", "gpus": {"count": 0, "labels": {"node": node}}, "env": {NODE_VARIABLE: node}}
        for number, node in enumerate(nodes)
    ]
    return {
        "name": "verify-network",
        "project": project,
        "command": [NODE_PROGRAM, PROGRAM],
        "gpus": {"count": 0},
        "gang": {"workers": len(nodes)},
        "roles": roles,
        "framework": "torch",
        "env": {KEY_VARIABLE: secrets.token_hex(16)},
        "priority": "low",
        "restart": "never",
        "max_time": MAX_TIME_S,
        "ttl": KEEP,
        **({} if wait is None else {"wait": wait}),
    }


def _read(pool: PoolClient, workload: str) -> Json | None:
    """Return the report in the output of rank 0; None if there is none."""
    from gpupool.cli.transport.member_logs import all_chunks

    chunks = all_chunks(pool, workload_path(workload, "logs"), {"index": 0}).chunks
    output = b"".join(base64.b64decode(chunk["data"]) for chunk in chunks if chunk["stream"] == "out")
    lines = [line for line in output.decode(errors="replace").splitlines() if line.startswith("{")]
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and "pairs" in found else None


def _row(pair: Json) -> tuple[str, ...]:
    values = [f"{pair['values'][name]:.4g}" if name in pair["values"] else "-" for name in COLUMNS]
    return (pair["from"], pair["to"], pair["outcome"], *values, pair["note"] or "-")


def _all_reduce_lines(found: Json) -> list[str]:
    """Return the result of the all-reduce of all nodes."""
    check = found["all_reduce"]
    values = check["values"]
    if not values:
        return ["", f"all-reduce over {len(found['nodes'])} nodes: {check['outcome']}: {check['note']}"]
    size, rate, took = (values[name] for name in ("size_mib", "bus_mib_s", "round_ms"))
    over = f"all-reduce of {size:.4g} MiB over {len(found['nodes'])} nodes"
    return ["", f"{over}: {rate:.4g} MiB/s bus bandwidth, {took:.4g} ms ({check['method']})"]
