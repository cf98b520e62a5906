"""``node``: labels, lost nodes, and aliases of other commands for nodes."""

from __future__ import annotations

from typing import Annotated

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_aliases, add_group, command
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.text import pairs
from gpupool.cli.transport.pool import open_pool, quote_segment
from gpupool.domain.errors import ErrorCode, GpupoolError

Node = Annotated[str, typer.Argument(metavar="NODE", help="A node's name.", autocompletion=completion.nodes)]
Labels = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE... KEY-...", help="Labels to set, or (KEY-) to remove.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(
        app, "node", "List, inspect and manage nodes.", "gpupool node list", "gpupool node label gpu1 pool=a100"
    )
    add_aliases(group, "node")
    command(
        group,
        "gpupool node label gpu1",
        "gpupool node label gpu1 rack=r1 pool=a100",
        "gpupool node label gpu1 rack-",
        "gpupool node label gpu1 mig=on-demand",
        context_settings={"ignore_unknown_options": True},
    )(label)
    command(group, 'gpupool node lost gpu3 --reason "its power supply burnt"')(lost)
    command(group, "gpupool node remove gpu3")(remove)


def label(name: Node, labels: Labels = None, json: AsJson = False) -> None:
    """Show or change a node's labels. A label set here overrides one that the node reports.

    The label 'pool' is the node pool: 'run --pool NAME' requires it, and a project can be limited to some pools. With
    the label 'mig=on-demand' the pool creates MIG instances on the node for queued requests.
    """
    pool, path = open_pool(), f"nodes/{quote_segment(name)}"
    if not labels:
        found = pool.get(path)
    else:
        put = dict(text.split("=", 1) for text in labels if "=" in text)
        remove = [text[:-1] for text in labels if "=" not in text and len(text) > 1 and text.endswith("-")]
        if len(put) + len(remove) < len(labels):
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "A label is KEY=VALUE, or KEY- to remove it; each key once.",
                "For example: gpupool node label gpu1 rack=r1 old-",
            )
        found = pool.post(f"{path}/labels", {"put": put, "remove": remove})
        notify(f"{found['name']} is labelled")
    if json:
        show_json(found["labels"])
    else:
        show(pairs(sorted(found["labels"].items()), out_style()))


def lost(
    name: Node,
    reason: Annotated[str, typer.Option("--reason", help="Give a reason, which users see.", metavar="TEXT")] = "",
) -> None:
    """Declare a node lost, if you know that it is off: its workloads are retried on other nodes at once.

    A node that only does not answer may still run its programs, and they would run twice. Without this command, batch
    workloads are retried after 'policy set --node-lost-after', and other workloads wait for the node.
    """
    count = open_pool().post(f"nodes/{quote_segment(name)}/lost", {"reason": reason})["replicas"]
    notify(f"{name} is declared lost, with {count} replica{'' if count == 1 else 's'}")


def remove(name: Node) -> None:
    """Remove a node that has left the pool and runs nothing; its history stays."""
    open_pool().delete(f"nodes/{quote_segment(name)}")
    notify(f"{name} is removed")
