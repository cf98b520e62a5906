"""``jupyter``: kernels on slices of GPUs."""

from __future__ import annotations

from typing import Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command, with_options
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.text import table
from gpupool.cli.request import request_body
from gpupool.client import discovery
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.jupyter import kernel_spec
from gpupool.specs.job_options import (
    CONTAINER_OPTIONS,
    GPU_OPTIONS,
    HOST_OPTIONS,
    OUTPUT,
    PROGRAM,
    PROGRAM_OPTIONS,
    QUEUE_OPTIONS,
    Option,
    OptionKind,
)

_TEXT = OptionKind.TEXT
_SHARED = (*GPU_OPTIONS, *QUEUE_OPTIONS, *HOST_OPTIONS, *PROGRAM_OPTIONS, *CONTAINER_OPTIONS)
_OF_KERNELS = {
    *("num_gpus", "partial", "gpu_memory", "gpu", "model", "compute", "sharing", "pool", "filter"),
    *("project", "wait", "idle_timeout", "cpus", "memory", "env", "lazy", "return_after", "on_preempt"),
    *("image", "volume", "pull", "shm"),
}
KERNEL_OPTIONS = (
    *(option for option in _SHARED if option.name in _OF_KERNELS),
    Option("python", "--python", _TEXT, "Use this Python; default: that of your shell.", PROGRAM, "PATH"),
    Option("language", "--language", _TEXT, "Set the language: Python (default) or R.", PROGRAM, "NAME"),
    Option("name", "--name", _TEXT, "Set the name of the kernel in Jupyter; default: from its size.", OUTPUT, "NAME"),
    Option("display_name", "--display-name", _TEXT, "Set its title in Jupyter's launcher.", OUTPUT, "TEXT"),
    Option("json", "--json", OptionKind.FLAG, "Print the kernel as JSON.", OUTPUT),
)
Size = Annotated[
    str | None, typer.Argument(metavar="GPUS", help="The GPUs of each kernel, as -g: 0.02 for a part of one GPU, or 1.")
]
Python = Annotated[
    str | None, typer.Option("--python", metavar="PATH", help="Install into this Python; default: that of Jupyter.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(
        app,
        "jupyter",
        "Run Jupyter kernels on slices of GPUs.",
        "gpupool jupyter install",
        "gpupool jupyter kernel add 0.02",
    )
    command(group, "gpupool jupyter install", "gpupool jupyter install --python /opt/jupyter/bin/python")(install)
    kernel = add_group(
        group,
        "kernel",
        "Add, list and remove kernels of Jupyter that run on slices.",
        "gpupool jupyter kernel add 0.02",
        "gpupool jupyter kernel list",
    )
    command(
        kernel,
        "gpupool jupyter kernel add 0.02",
        "gpupool jupyter kernel add -m 2G --idle-timeout 1h",
        "gpupool jupyter kernel add -g 1 --project vision --python ~/envs/torch/bin/python",
        "gpupool jupyter kernel add 0.1 --image pytorch/pytorch:2.4.0 --name torch",
        "gpupool jupyter kernel add 0.05 --language R",
    )(add)
    command(kernel, "gpupool jupyter kernel list", name="list")(list_kernels)
    command(kernel, "gpupool jupyter kernel remove gpupool-0.02")(remove)


def install(python: Python = None) -> None:
    """Install gpupool's extra into the Jupyter of your PATH, so that it can start kernels on slices."""
    from gpupool.jupyter import installation

    jupyter = installation.find_jupyter(python)
    installation.install(jupyter)
    notify(f"{jupyter} can start kernels on slices; add one with 'gpupool jupyter kernel add 0.02'")


@with_options(KERNEL_OPTIONS)
def add(size: Size = None, **values: Any) -> None:
    """Add a kernel to Jupyter: each notebook that uses it gets its own slice.

    The kernel appears in the launcher and in the menu of kernels. A notebook waits in the queue if no GPU is free; its
    slice is released when the kernel is shut down, or after the idle limit. The variables GPUPOOL_KERNEL_FRACTION,
    GPUPOOL_KERNEL_MEMORY, GPUPOOL_KERNEL_GPUS and GPUPOOL_KERNEL_PROJECT of a notebook override the kernel's size.
    """
    if size is not None:
        if "gpu" in values:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST, "The GPUs are given twice, as GPUS and by -g.", "Give one of them."
            )
        values["gpu"] = size
    request = _checked_request(values)
    language = values.get("language", "python")
    not_here = "image" in request or isinstance(discovery.find_pool(), discovery.Remote)
    program = kernel_spec.find_program(language, python=values.get("python"), not_here=not_here)
    name = values.get("name") or kernel_spec.default_name(program.language, request)
    title = values.get("display_name") or kernel_spec.default_display_name(program.language, request)
    spec = kernel_spec.add(name, title, program, request)
    notify(f"kernel {spec.name} is added; Jupyter shows it as '{spec.display_name}'")
    if values.get("json"):
        show_json(_as_json(spec))


def _checked_request(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the kernel's workloads. Raises ``GpupoolError`` for values that the pool would reject."""
    from gpupool.specs.request import parse_request

    if not values.keys() & {"gpu", "num_gpus", "partial", "gpu_memory"}:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "The size of the kernel is missing.",
            "For example: gpupool jupyter kernel add 0.02, or -m 2G, or -g 1.",
        )
    body: dict[str, Any] = {
        **request_body.copy_fields(values, _SHARED),
        **request_body.container_fields(values),
        "gpus": request_body.gpu_request(values),
        "env": request_body.added_environment(values.get("env") or []),
    }
    body.pop("name", None)
    checked = parse_request({**body, "kind": "interactive", "command": ["kernel"]}).to_body()
    return {name: value for name, value in checked.items() if name not in {"kind", "command"}}


def list_kernels(json: AsJson = False) -> None:
    """List the kernels that run on slices."""
    found = kernel_spec.installed()
    if json:
        show_json([_as_json(spec) for spec in found])
        return
    rows = [(spec.name, spec.display_name, spec.language, spec.argv[0]) for spec in found]
    show(table(("NAME", "TITLE", "LANGUAGE", "PROGRAM"), rows, out_style()))


def remove(name: Annotated[str, typer.Argument(metavar="NAME", help="A kernel's name in Jupyter.")]) -> None:
    """Remove a kernel from Jupyter. Running notebooks are not affected."""
    kernel_spec.remove(name)
    notify(f"kernel {name} is removed")


def _as_json(spec: kernel_spec.KernelSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "display_name": spec.display_name,
        "language": spec.language,
        "folder": str(spec.folder),
        "argv": spec.argv,
        "request": spec.request,
    }
