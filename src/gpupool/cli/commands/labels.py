"""``node label``, ``node lost`` and ``node remove``."""

from __future__ import annotations

from typing import Annotated

import typer

from gpupool.cli import completing
from gpupool.cli.commands.common import AsJson, command, help_text
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import open_pool, segment
from gpupool.cli.render.text import pairs
from gpupool.domain.errors import ErrorCode, GpupoolError

Node = Annotated[str, typer.Argument(metavar="NODE", help="A node's name.", autocompletion=completing.nodes)]
Labels = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE... KEY-...", help="Labels to put on it, or (KEY-) take away.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        help=help_text("Labels of nodes, and nodes that are gone.", ["gpupool node label gpu1 pool=a100"]),
    )
    command(
        group,
        "gpupool node label gpu1",
        "gpupool node label gpu1 rack=r1 pool=a100",
        "gpupool node label gpu1 rack-",
        context_settings={"ignore_unknown_options": True},
    )(label)
    command(group, 'gpupool node lost gpu3 --reason "its power supply burnt"')(lost)
    command(group, "gpupool node remove gpu3")(remove)
    app.add_typer(group, name="node")


def label(name: Node, labels: Labels = None, json: AsJson = False) -> None:
    """Show a node's labels, or change them; a label put here goes before one that the machine reports.

    The label 'pool' says which pool a node is in: 'run --pool NAME' asks for it, and a project may be bound to some.
    """
    pool, path = open_pool(), f"nodes/{segment(name)}"
    if not labels:
        found = pool.get(path)
    else:
        put = dict(text.split("=", 1) for text in labels if "=" in text)
        remove = [text[:-1] for text in labels if "=" not in text and len(text) > 1 and text.endswith("-")]
        if len(put) + len(remove) < len(labels):
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "A label is KEY=VALUE, or KEY- to take it away, each once.",
                "For example: gpupool node label gpu1 rack=r1 old-",
            )
        found = pool.post(f"{path}/labels", {"put": put, "remove": remove})
        tell(f"{found['name']} is labelled")
    if json:
        show_json(found["labels"])
    else:
        show(pairs(sorted(found["labels"].items()), out_style()))


def lost(
    name: Node, reason: Annotated[str, typer.Option("--reason", help="Why; users see it.", metavar="TEXT")] = ""
) -> None:
    """Give up all work of a node that you know is off: what may run elsewhere does so at once.

    A node that only does not answer may still run its programs, and they would run twice. By itself the pool gives up
    batch work after 'policy set --node-lost-after', and waits for the rest.
    """
    count = open_pool().post(f"nodes/{segment(name)}/lost", {"reason": reason})["replicas"]
    tell(f"{name} is lost, with {count} replica{'' if count == 1 else 's'}")


def remove(name: Node) -> None:
    """Forget a node that has left the pool and holds nothing; its history stays."""
    open_pool().delete(f"nodes/{segment(name)}")
    tell(f"{name} is forgotten")
