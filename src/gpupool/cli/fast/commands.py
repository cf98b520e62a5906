"""The two commands that must be fast, as the parsed options give them."""

from __future__ import annotations

import os

from gpupool.cli import asking
from gpupool.cli.fast import notice
from gpupool.cli.fast.gate import find_gate, refusal
from gpupool.cli.fast.launch import Launch
from gpupool.cli.fast.signals import Inbox
from gpupool.cli.fast.terminal import size, wants_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpupool.cli.fast.gate import Gate

    Values = dict[str, Any]


def run(values: Values, command: list[str]) -> int:
    """``gpupool run``: the program's exit status. Raises ``GpupoolError``."""
    body = asking.workload(values, command) | {"kind": "run"}
    return _detached(body, values) if values.get("detach") else stay(body, values, start=True)


def client(values: Values, command: list[str]) -> int:
    """``gpupool client``: a program on the GPUs of a lease; its exit status. Raises ``GpupoolError``."""
    from gpupool.cli.leases import lease_of

    on = values.get("lease") or lease_of(values.get("file"))
    body = asking.workload(values, command) | {"kind": "exec", "on": on}
    body.pop("project", None)  # the lease's own
    return stay(body, values, start=False)


def stay(body: Values, values: Values, *, start: bool) -> int:
    """Submit a program bound to this client and stay with it until it ends."""
    tty = wants_terminal(values.get("tty"))
    rows, columns = size()
    body |= {"client_bound": True, "tty": tty, "stdin": not tty, "rows": rows, "columns": columns}
    gate = find_gate(start=start)
    body = with_folder(gate, body, values)
    with Inbox() as inbox:
        return Launch(gate, inbox, tty=tty, quiet=bool(values.get("quiet"))).run(body)


def with_folder(gate: Gate, body: Values, values: Values) -> Values:
    """The request with the folder that goes along: always over a network, here when asked for."""
    if (gate.direct or "image" in body) and not (values.get("files") or values.get("lock")):
        return body
    from gpupool.cli.travelling import prepared

    return prepared(gate, body, values)


def _detached(body: Values, values: Values) -> int:
    gate = find_gate(start=True)
    answer = gate.call("POST", "/v1/workloads", with_folder(gate, body, values))
    if not answer.ok:
        raise refusal(answer)
    os.write(1, f"{answer.body['id']}\n".encode())
    name = answer.body["name"]
    notice.say(f"{name} is {answer.body['state']}; 'gpupool logs -f {name}' shows its output")
    return 0
