"""``notebook`` and ``open``: JupyterLab in the pool, and ports of workloads in the browser."""

from __future__ import annotations

import os
import secrets
from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import Replica, command, with_options
from gpupool.cli.commands.work.attach import require_program
from gpupool.cli.fast.commands import add_folder
from gpupool.cli.fast.launch import FINAL, Launcher
from gpupool.cli.fast.signals import SignalInbox
from gpupool.cli.fast.waiting import Interrupted
from gpupool.cli.kubernetes.names import resolve_reference
from gpupool.cli.output import notify
from gpupool.cli.request import request_body
from gpupool.cli.request.submit_options import NOTEBOOK
from gpupool.cli.served_port import (
    PORT_VARIABLE,
    TOKEN_VARIABLE,
    EndedEarlyError,
    PortTarget,
    TunnelOptions,
    describe_end,
    open_through_gateway,
    serve,
    wait_for_port,
)
from gpupool.cli.transport.local import find_transport
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment
from gpupool.domain.errors import ErrorCode, GpupoolError

JUPYTER = "jupyter"
DEFAULT_PYTHON = "python3"
FIRST_PORT, LAST_PORT = 10_000, 19_999  # below the ports that nodes give to gangs; Jupyter takes another if one is used
PORT_RETRIES = 100
NO_MODULE = "No module named jupyterlab"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool notebook -p 0.1",
        "gpupool notebook -m 2G --idle-timeout 1h --no-browser",
        "gpupool notebook -n 0 --python ~/envs/torch/bin/python",
        "gpupool notebook -g 1 -i quay.io/jupyter/pytorch-notebook",
        "gpupool notebook --workspace bob",
    )(notebook)
    command(
        app,
        "gpupool open notebook-3f2a",
        "gpupool open train-1 6006",
        "gpupool open sweep/3 8080 --no-browser",
        "gpupool open notebook-3f2a --gateway",
        name="open",
    )(open_)


@with_options(NOTEBOOK)
def notebook(**values: Any) -> int:
    """Start JupyterLab in the pool and open it in your browser.

    It waits in the queue as an interactive session, and its port is tunnelled to this machine. Ctrl-C in the queue
    cancels; afterwards it ends only the tunnel. 'gpupool open NAME' connects again, from any machine with a login.
    """
    transport = find_transport(start=True)
    body = add_folder(transport, notebook_body(values), values)
    body["env"] = _environment(body.get("env") or {})
    quiet = bool(values.get("quiet"))
    pool = PoolClient(transport)
    body = _on_running_session(pool, body)
    target = PortTarget(jupyter=True)
    with SignalInbox() as inbox:
        launcher = Launcher(transport, inbox, tty=False, quiet=quiet)
        try:
            detail = launcher.submit_and_wait(body)
            if detail["state"] in FINAL:
                raise _ended(detail)
            if not quiet:
                notify(f"{detail['name']} started on {detail['node']}")
            port = wait_for_port(launcher, pool, detail, 0, target)
        except Interrupted as stop:
            return 128 + stop.signum
        except EndedEarlyError as error:
            raise _explained(error, values.get("python") or DEFAULT_PYTHON) from error
    options = TunnelOptions(values.get("port"), not values.get("no_browser"), quiet)
    return serve(pool, detail, 0, port, options, body["env"][TOKEN_VARIABLE])


def notebook_body(values: dict[str, Any]) -> dict[str, Any]:
    """Return the request of an interactive session with JupyterLab."""
    values = {"name": f"notebook-{secrets.token_hex(2)}"} | values
    if (port := values.get("port")) is not None and not 0 <= port < 65536:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"{port} is not a port.", "Give one from 1 to 65535.")
    command_line = jupyter_command(values.get("python") or DEFAULT_PYTHON)
    return request_body.workload_body(values, command_line) | {"kind": "interactive", "tty": False, "stdin": False}


def jupyter_command(python: str) -> list[str]:
    """Return the command of JupyterLab; its port and token are variables (``jupyter_variables``)."""
    python = os.path.expanduser(python)  # noqa: PTH111 - may be a plain name
    return [
        *(python, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.base_url=/", "--ServerApp.certfile=", "--ServerApp.keyfile="),
        f"--ServerApp.port_retries={PORT_RETRIES}",
    ]


def _on_running_session(pool: PoolClient, body: dict[str, Any]) -> dict[str, Any]:
    """Return the request; for a workspace that is started, that of a program on the GPUs of its session."""
    if not body.get("workspace"):
        return body
    session = pool.get(f"workspaces/{quote_segment(body['workspace'])}")["session"]
    if session is None:
        return body
    return {name: value for name, value in body.items() if name not in {"workspace", "project"}} | {
        "kind": "exec",
        "on": session,
    }


def _environment(env: dict[str, str]) -> dict[str, str]:
    """Return the environment of JupyterLab. Its token is a variable because all users of a node can read arguments."""
    kept = {name: value for name, value in env.items() if not name.startswith("JPY_")}  # of a Jupyter around this shell
    return kept | jupyter_variables()


def jupyter_variables() -> dict[str, str]:
    """Return a port and a token for JupyterLab."""
    port = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT + 1)
    return {PORT_VARIABLE: str(port), TOKEN_VARIABLE: secrets.token_hex(24)}


def _explained(error: EndedEarlyError, python: str) -> GpupoolError:
    """Return the error with its most likely reason."""
    if any(NO_MODULE in line for line in error.output):
        return GpupoolError(
            ErrorCode.NOT_FOUND,
            f"{python} has no JupyterLab on the node.",
            f"Install it with '{python} -m pip install jupyterlab', or name a Python that has it with --python, or an "
            "image with -i.",
        )
    for line in error.output:
        notify(f"| {line}")
    return error


def _ended(detail: dict[str, Any]) -> GpupoolError:
    return GpupoolError(
        ErrorCode.WRONG_STATE,
        f"{detail['name']} {describe_end(detail)}.",
        f"See 'gpupool describe {detail['name']}' and 'gpupool logs {detail['name']}'.",
    )


def open_(
    name: Replica,
    what: Annotated[
        str | None,
        typer.Argument(metavar="[WHAT]", help="'jupyter' or a port number; default: Jupyter, or the only port."),
    ] = None,
    *,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, metavar="PORT", help="Listen on this port of this machine."),
    ] = None,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Use a link through the pool's gateway, without a tunnel, and exit.")
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address instead.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print no messages.")] = False,
) -> int:
    """Tunnel a port of a workload to this machine and open it in your browser, until Ctrl-C.

    It waits until the workload runs and listens on the port. Ctrl-C does not end the workload. With --gateway the
    browser reaches the port through the pool for eight hours, and the command ends at once.
    """
    ref, number = resolve_reference(name)
    index = number or 0
    pool = open_pool()
    found = require_program(pool, ref)
    target = _target(what, found.get("env") or {})
    with SignalInbox() as inbox:
        launcher = Launcher(pool.transport, inbox, tty=False, quiet=quiet)
        try:
            detail = launcher.wait_for_existing(found["id"], index)
            if detail["state"] in FINAL:
                raise _ended(detail)
            local_port = wait_for_port(launcher, pool, detail, index, target)
        except Interrupted as stop:
            return 128 + stop.signum
    if gateway:
        return open_through_gateway(pool, detail, index, local_port, browser=not no_browser)
    token = (detail.get("env") or {}).get(TOKEN_VARIABLE, "") if target.jupyter else ""
    return serve(pool, detail, index, local_port, TunnelOptions(port, not no_browser, quiet), token)


def _target(what: str | None, env: dict[str, str]) -> PortTarget:
    if what == JUPYTER or (what is None and TOKEN_VARIABLE in env):
        return PortTarget(jupyter=True)
    if what is None:
        return PortTarget()
    if not what.isdecimal() or not 0 < int(what[:6]) < 65536:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{what[:40]}' is neither 'jupyter' nor a port.", "Write, for example, 6006."
        )
    return PortTarget(int(what))
