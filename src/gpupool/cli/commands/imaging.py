"""``image list``, ``image import``, ``image pull`` and ``image remove``."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from gpupool.cli import completing
from gpupool.cli.commands.common import AsJson, command, help_text
from gpupool.cli.output import out_style, show, show_json, tell
from gpupool.cli.pool import Pool, open_pool, segment
from gpupool.cli.render.text import table
from gpupool.domain.errors import ErrorCode, GpupoolError

PIECE_BYTES = 3 << 20
POLL_S = 0.2
Name = Annotated[str, typer.Argument(metavar="IMAGE", help="An image's name, like pytorch/pytorch:2.4.0.")]
Nodes = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NODE", help="Only this node; repeat for others.", autocompletion=completing.nodes),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        help=help_text(
            "Container images of the nodes.", ["gpupool image list", "gpupool image import lab.tar --name lab:1"]
        ),
    )
    command(group, "gpupool image list", "gpupool image list --node gpu1", name="list")(list_images)
    command(
        group, "gpupool image import lab.tar", "gpupool image import rootfs.tar --name lab:1 --node gpu1", name="import"
    )(import_image)
    command(group, "gpupool image pull pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime")(pull)
    command(group, "gpupool image remove lab:1")(remove)
    app.add_typer(group, name="image")


def list_images(node: Nodes = None, json: AsJson = False) -> None:
    """The images that nodes have: 'run -i' starts at once with these."""
    found = open_pool().get("images")
    wanted = [image for image in found["images"] if not node or image["node"] in node]
    if json:
        show_json({**found, "images": wanted})
        return
    rows = [(i["node"], i["name"] or "-", i["id"], f"{i['size_bytes'] / 1e6:.0f} MB") for i in wanted]
    show(table(("NODE", "IMAGE", "ID", "SIZE"), rows, out_style()))
    for name, why in found["unknown"].items():
        tell(f"{name}: {why}")


def import_image(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Made by 'podman save' or 'docker save', or a tar.")],
    name: Annotated[str, typer.Option("--name", metavar="IMAGE", help="What to call it; needed for a plain tar.")] = "",
    node: Nodes = None,
    json: AsJson = False,
) -> None:
    """Bring an image from a file to the nodes, with no registry. For administrators.

    The file is what 'podman save' or 'docker save' wrote, or the tar of a file system, which needs a name.
    """
    pool = open_pool()
    found: dict[str, list[str]] = {}
    for each in _nodes(pool, node):
        upload = os.urandom(16).hex()
        try:
            with file.open("rb") as archive:
                _send(pool, each, upload, archive)
        except OSError as error:
            sentence = f"{file} cannot be read: {error.strerror}."
            raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Give the path of an archive.") from error
        found[each] = _finished(pool, each, {"upload": upload, "name": name})
    _tell(found, as_json=json)


def pull(name: Name, node: Nodes = None, json: AsJson = False) -> None:
    """Have the nodes fetch an image from its registry, before somebody waits for it. For administrators."""
    pool = open_pool()
    _tell({each: _finished(pool, each, {"name": name}) for each in _nodes(pool, node)}, as_json=json)


def remove(name: Name, node: Nodes = None) -> None:
    """Remove an image from the nodes that have it. For administrators."""
    pool, gone = open_pool(), []
    missing: GpupoolError | None = None
    for each in _nodes(pool, node):
        try:
            pool.delete(f"nodes/{segment(each)}/images?image={segment(name)}")
            gone.append(each)
        except GpupoolError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            missing = error
    if not gone and missing is not None:
        raise missing
    tell(f"{name} is removed from {', '.join(gone)}")


def _nodes(pool: Pool, chosen: list[str] | None) -> list[str]:
    """Those chosen, or all that answer."""
    if chosen:
        return chosen
    return [node["name"] for node in pool.get("nodes")["nodes"] if node["state"] != "down"]


def _send(pool: Pool, node: str, upload: str, archive: BinaryIO) -> None:
    offset = 0
    while piece := archive.read(PIECE_BYTES):
        text = base64.b64encode(piece).decode("ascii")
        body = {"upload": upload, "offset": offset, "data": text}
        offset = pool.post(f"nodes/{segment(node)}/images/pieces", body)["size"]
    if not offset:
        raise GpupoolError(ErrorCode.INVALID_FILE, "The archive is empty.", "Make it with `podman save`.")


def _finished(pool: Pool, node: str, body: dict[str, Any]) -> list[str]:
    """The images that came of a job. Raises what it raised."""
    job = pool.post(f"nodes/{segment(node)}/images", body)["job"]
    while True:
        found = pool.get(f"nodes/{segment(node)}/images/jobs/{job}")
        if found["done"]:
            return list(found["names"])
        time.sleep(POLL_S)


def _tell(found: dict[str, list[str]], *, as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    for node, names in found.items():
        tell(f"{', '.join(names)} is on {node}")
