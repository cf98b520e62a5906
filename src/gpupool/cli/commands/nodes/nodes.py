"""``list-gpus``, ``smi``, ``nodes``, ``cordon``, ``drain``, ``uncordon`` and ``sharing``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command, notify_if_emulated
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.machines import gpu_lines, node_lines, sharing_lines, smi_lines
from gpupool.cli.render.text import Style
from gpupool.cli.transport.pool import open_pool, quote_segment

DEFAULT = "default"

CordonedGpu = Annotated[int | None, typer.Option("--gpu", metavar="N", help="Only this GPU, by its index.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="A node's name.", autocompletion=completion.nodes)]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(app, "gpupool list-gpus", "gpupool list-gpus --json", name="list-gpus")(list_gpus)
    command(app, "gpupool smi")(smi)
    command(app, "gpupool nodes", "gpupool nodes --json")(nodes)
    command(app, 'gpupool cordon gpu1 --reason "new driver at noon"', "gpupool cordon gpu1 --gpu 2")(cordon)
    command(app, 'gpupool drain gpu1 --reason "new driver at noon"')(drain)
    command(app, "gpupool uncordon gpu1", "gpupool uncordon gpu1 --gpu 2")(uncordon)
    command(app, "gpupool sharing gpu1", "gpupool sharing gpu1 mps --gpu 2", "gpupool sharing gpu1 default")(sharing)


def list_gpus(json: AsJson = False) -> None:
    """List the GPUs of the pool with their free capacity."""
    _show_all("gpus", gpu_lines, json=json)


def smi(json: AsJson = False) -> None:
    """Show the activity of every GPU of the pool, like nvidia-smi for one machine."""
    _show_all("gpus", smi_lines, json=json)


def nodes(json: AsJson = False) -> None:
    """List the nodes of the pool."""
    _show_all("nodes", node_lines, json=json)


def _show_all(what: str, lines: Callable[[list[Any], Style], Iterable[str]], *, json: bool) -> None:
    pool = open_pool()
    found = pool.get(what)
    if json:
        show_json(found)
        return
    notify_if_emulated(pool)
    show(lines(found[what], out_style()))


def cordon(
    name: Node,
    reason: Annotated[str, typer.Option("--reason", help="Give a reason, which users see.", metavar="TEXT")] = "",
    gpu: CordonedGpu = None,
) -> None:
    """Cordon a node or one of its GPUs: place nothing new on it; running workloads continue."""
    node = open_pool().post(f"nodes/{quote_segment(name)}/cordon", {"reason": reason} | _gpu_field(gpu))
    notify(f"{node['name']} is {node['state']}" if gpu is None else f"GPU {gpu} of {node['name']} is cordoned")


def drain(
    name: Node,
    reason: Annotated[str, typer.Option("--reason", help="Give a reason, which users see.", metavar="TEXT")] = "",
) -> None:
    """Cordon a node and requeue its training after a preemption notice; other workloads continue."""
    node = open_pool().post(f"nodes/{quote_segment(name)}/cordon", {"reason": reason, "drain": True})
    notify(f"{node['name']} is {node['state']}; its training is queued again")
    left = {f"{holder['name']} of {holder['user']}": None for gpu in node["gpus"] for holder in gpu["holders"]}
    if left:
        notify(f"running now: {', '.join(left)}")


def uncordon(name: Node, gpu: CordonedGpu = None) -> None:
    """Uncordon a node or one of its GPUs, so that it accepts workloads again."""
    node = open_pool().post(f"nodes/{quote_segment(name)}/uncordon", _gpu_field(gpu))
    notify(f"{node['name']} is {node['state']}" if gpu is None else f"GPU {gpu} of {node['name']} is uncordoned")


def _gpu_field(gpu: int | None) -> dict[str, int]:
    return {} if gpu is None else {"gpu": gpu}


def sharing(
    name: Node,
    mode: Annotated[
        str | None, typer.Argument(metavar="MODE", help="share, mps, advisory, whole (no slices), or default.")
    ] = None,
    gpu: Annotated[
        int | None, typer.Option("--gpu", metavar="N", help="Set it for this GPU only, by its index.")
    ] = None,
) -> None:
    """Show or set the sharing mode of a node's GPUs. Running workloads keep their mode until they end."""
    pool = open_pool()
    path = f"nodes/{quote_segment(name)}"
    if mode is None:
        show(sharing_lines(pool.get(path), out_style()))
        return
    pool.post(f"{path}/sharing", {"mode": None if mode == DEFAULT else mode, "gpu": gpu})
    which = f"GPU {gpu} of {name}" if gpu is not None else f"the GPUs of {name}"
    notify(f"sharing mode of {which}: {'the default of the node' if mode == DEFAULT else mode}")
