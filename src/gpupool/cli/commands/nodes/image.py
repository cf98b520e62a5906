"""``image list``, ``image import``, ``image pull`` and ``image remove``."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from gpupool.cli import completion
from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.text import table
from gpupool.cli.transport.pool import PoolClient, open_pool, quote_segment
from gpupool.domain.errors import ErrorCode, GpupoolError

PIECE_BYTES = 3 << 20
POLL_S = 0.2
Name = Annotated[str, typer.Argument(metavar="IMAGE", help="An image's name, like pytorch/pytorch:2.4.0.")]
Nodes = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NODE", help="Use only this node; repeatable.", autocompletion=completion.nodes),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(
        app,
        "image",
        "List, import, pull and remove container images of nodes.",
        "gpupool image list",
        "gpupool image import lab.tar --name lab:1",
    )
    command(group, "gpupool image list", "gpupool image list --node gpu1", name="list")(list_images)
    command(
        group, "gpupool image import lab.tar", "gpupool image import rootfs.tar --name lab:1 --node gpu1", name="import"
    )(import_image)
    command(group, "gpupool image pull pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime")(pull)
    command(group, "gpupool image remove lab:1")(remove)


def list_images(node: Nodes = None, json: AsJson = False) -> None:
    """List the container images of the nodes; 'run -i' starts at once with these."""
    found = open_pool().get("images")
    wanted = [image for image in found["images"] if not node or image["node"] in node]
    if json:
        show_json({**found, "images": wanted})
        return
    rows = [(i["node"], i["name"] or "-", i["id"], f"{i['size_bytes'] / 1e6:.0f} MB") for i in wanted]
    show(table(("NODE", "IMAGE", "ID", "SIZE"), rows, out_style()))
    for name, why in found["unknown"].items():
        notify(f"{name}: {why}")


def import_image(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="An archive of 'podman save' or 'docker save', or a tar.")
    ],
    name: Annotated[
        str, typer.Option("--name", metavar="IMAGE", help="Set the image's name; required for a plain tar.")
    ] = "",
    node: Nodes = None,
    json: AsJson = False,
) -> None:
    """Import an image from a file to the nodes, without a registry. For administrators.

    The file is the output of 'podman save' or 'docker save', or the tar of a file system, which needs a name.
    """
    pool = open_pool()
    found: dict[str, list[str]] = {}
    for each in _nodes(pool, node):
        upload = os.urandom(16).hex()
        try:
            with file.open("rb") as archive:
                _upload(pool, each, upload, archive)
        except OSError as error:
            sentence = f"{file} cannot be read: {error.strerror}."
            raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Give the path of an archive.") from error
        found[each] = _await_job(pool, each, {"upload": upload, "name": name})
    _report(found, as_json=json)


def pull(name: Name, node: Nodes = None, json: AsJson = False) -> None:
    """Pull an image from its registry to the nodes in advance. For administrators."""
    pool = open_pool()
    _report({each: _await_job(pool, each, {"name": name}) for each in _nodes(pool, node)}, as_json=json)


def remove(name: Name, node: Nodes = None) -> None:
    """Remove an image from the nodes that have it. For administrators."""
    pool, gone = open_pool(), []
    missing: GpupoolError | None = None
    for each in _nodes(pool, node):
        try:
            pool.delete(f"nodes/{quote_segment(each)}/images?image={quote_segment(name)}")
            gone.append(each)
        except GpupoolError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            missing = error
    if not gone and missing is not None:
        raise missing
    notify(f"{name} is removed from {', '.join(gone)}")


def _nodes(pool: PoolClient, chosen: list[str] | None) -> list[str]:
    """Return the chosen nodes, or all that answer."""
    if chosen:
        return chosen
    return [node["name"] for node in pool.get("nodes")["nodes"] if node["state"] != "down"]


def _upload(pool: PoolClient, node: str, upload: str, archive: BinaryIO) -> None:
    offset = 0
    while piece := archive.read(PIECE_BYTES):
        text = base64.b64encode(piece).decode("ascii")
        body = {"upload": upload, "offset": offset, "data": text}
        offset = pool.post(f"nodes/{quote_segment(node)}/images/pieces", body)["size"]
    if not offset:
        raise GpupoolError(ErrorCode.INVALID_FILE, "The archive is empty.", "Create it with 'podman save'.")


def _await_job(pool: PoolClient, node: str, body: dict[str, Any]) -> list[str]:
    """Wait for an image job and return its images. Raises the job's error."""
    job = pool.post(f"nodes/{quote_segment(node)}/images", body)["job"]
    while True:
        found = pool.get(f"nodes/{quote_segment(node)}/images/jobs/{job}")
        if found["done"]:
            return list(found["names"])
        time.sleep(POLL_S)


def _report(found: dict[str, list[str]], *, as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    for node, names in found.items():
        notify(f"{', '.join(names)} is on {node}")
