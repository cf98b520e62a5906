"""``list_gpus``, ``smi``, ``nodes``, ``cordon``, ``uncordon`` and ``sharing``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from gpupool.cli import completing
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import out_style, show, show_json, tell, tell_emulated
from gpupool.cli.pool import open_pool, segment
from gpupool.cli.render.machines import gpu_lines, node_lines, sharing_lines, smi_lines
from gpupool.cli.render.text import Style

DEFAULT = "default"

Node = Annotated[str, typer.Argument(metavar="NODE", help="A node's name.", autocompletion=completing.nodes)]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool list_gpus", "gpupool list_gpus --json", name="list_gpus")(list_gpus)
    command(app, "gpupool smi")(smi)
    command(app, "gpupool nodes", "gpupool nodes --json")(nodes)
    command(app, 'gpupool cordon gpu1 --reason "new driver at noon"')(cordon)
    command(app, 'gpupool drain gpu1 --reason "new driver at noon"')(drain)
    command(app, "gpupool uncordon gpu1")(uncordon)
    command(app, "gpupool sharing gpu1", "gpupool sharing gpu1 mps --gpu 2", "gpupool sharing gpu1 default")(sharing)


def list_gpus(json: AsJson = False) -> None:
    """List the GPUs of the pool and what is free of each."""
    _show_all("gpus", gpu_lines, json=json)


def smi(json: AsJson = False) -> None:
    """Show what every GPU of the pool does now, as nvidia-smi does for one machine."""
    _show_all("gpus", smi_lines, json=json)


def nodes(json: AsJson = False) -> None:
    """List the machines of the pool."""
    _show_all("nodes", node_lines, json=json)


def _show_all(what: str, lines: Callable[[list[Any], Style], Iterable[str]], *, json: bool) -> None:
    pool = open_pool()
    found = pool.get(what)
    if json:
        show_json(found)
        return
    tell_emulated(pool)
    show(lines(found[what], out_style()))


def cordon(
    name: Node, reason: Annotated[str, typer.Option("--reason", help="Why; users see it.", metavar="TEXT")] = ""
) -> None:
    """Let a node finish what it runs and take nothing new."""
    node = open_pool().post(f"nodes/{segment(name)}/cordon", {"reason": reason})
    tell(f"{node['name']} is {node['state']}")


def drain(
    name: Node, reason: Annotated[str, typer.Option("--reason", help="Why; users see it.", metavar="TEXT")] = ""
) -> None:
    """Let a node take nothing new, and send its training back to the queue with its notice; the rest runs on."""
    node = open_pool().post(f"nodes/{segment(name)}/cordon", {"reason": reason, "drain": True})
    tell(f"{node['name']} is {node['state']}; training goes elsewhere")
    left = {f"{holder['name']} of {holder['user']}": None for gpu in node["gpus"] for holder in gpu["holders"]}
    if left:
        tell(f"there now: {', '.join(left)}")


def uncordon(name: Node) -> None:
    """Let a node take new work again."""
    node = open_pool().post(f"nodes/{segment(name)}/uncordon", {})
    tell(f"{node['name']} is {node['state']}")


def sharing(
    name: Node,
    mode: Annotated[
        str | None, typer.Argument(metavar="MODE", help="share, mps, advisory, whole (no parts), or default.")
    ] = None,
    gpu: Annotated[int | None, typer.Option("--gpu", metavar="N", help="This GPU only, by its number.")] = None,
) -> None:
    """Show or choose how parts of a node's GPUs are kept apart; what runs keeps its mode until it has ended."""
    pool = open_pool()
    path = f"nodes/{segment(name)}"
    if mode is None:
        show(sharing_lines(pool.get(path), out_style()))
        return
    pool.post(f"{path}/sharing", {"mode": None if mode == DEFAULT else mode, "gpu": gpu})
    which = f"GPU {gpu} of {name}" if gpu is not None else f"the GPUs of {name}"
    tell(f"parts of {which} are shared as the node does it" if mode == DEFAULT else f"parts of {which} get mode {mode}")
