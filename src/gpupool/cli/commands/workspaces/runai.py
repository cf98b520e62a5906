"""``workspace submit``, ``training`` and ``inference``: jobs and services with the words and options of Run:ai."""

from __future__ import annotations

from typing import Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import add_aliases, add_group, command, with_options
from gpupool.cli.commands.work.service import serve_with
from gpupool.cli.commands.work.submit import Words, submit_with
from gpupool.cli.commands.workspaces.notebook import DEFAULT_PYTHON, jupyter_command, jupyter_variables
from gpupool.cli.request import runai_options


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    training = add_group(
        app,
        "training",
        "Submit and control training, with the options of Run:ai.",
        "gpupool training submit train-1 -g 1 -- python3 train.py",
        "gpupool training pytorch submit ddp --workers 4 -g 1 -- torchrun train.py",
    )
    command(training, "gpupool training submit train-1 -i IMAGE --gpu-portion-request 0.5", name="submit")(
        submit_training
    )
    for name, function in _BY_FRAMEWORK.items():
        group = add_group(training, name, "Submit training.", f"gpupool training {name} submit NAME -- PROGRAM")
        command(group, f"gpupool training {name} submit train-1 -g 1 -- python3 train.py", name="submit")(function)
    add_aliases(training, "training")
    inference = add_group(
        app,
        "inference",
        "Submit services, with the options of Run:ai.",
        "gpupool inference submit chat -g 1 --serving-port 8000 -- python3 server.py",
    )
    command(
        inference,
        "gpupool inference submit chat -g 1 --serving-port 8000 --min-replicas 0 --max-replicas 4 -- python3 server.py",
        name="submit",
    )(submit_inference)
    add_aliases(inference, "inference")


@with_options(runai_options.JOB)
def submit_workspace(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Submit an interactive session, with the options of Run:ai."""
    return _submit(context, words, values | {"interactive": True})


@with_options(runai_options.JOB)
def submit_training(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Submit training, with the options of Run:ai."""
    return _submit(context, words, values)


@with_options(runai_options.JOB)
def submit_pytorch(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Submit a gang of PyTorch, with the options of Run:ai."""
    return _submit(context, words, {"workers": 1} | values | {"framework": "torch"})


@with_options(runai_options.JOB)
def submit_mpi(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Submit a gang of Open MPI, with the options of Run:ai."""
    return _submit(context, words, {"workers": 1} | values | {"framework": "mpi"})


@with_options(runai_options.JOB)
def submit_tensorflow(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Submit a gang of TensorFlow, with the options of Run:ai."""
    return _submit(context, words, {"workers": 1} | values | {"framework": "tf"})


@with_options(runai_options.SERVICE)
def submit_inference(context: typer.CommandContext, words: Words = None, **values: Any) -> int:
    """Submit a service, with the options of Run:ai."""
    program = (context.obj or {}).get("program", [])
    return serve_with(runai_options.service_values(values), list(words or []), list(program))


_BY_FRAMEWORK = {
    "standard": submit_training,
    "pytorch": submit_pytorch,
    "mpi": submit_mpi,
    "tensorflow": submit_tensorflow,
}


def _submit(context: typer.CommandContext, words: list[str] | None, values: dict[str, Any]) -> int:
    program = list((context.obj or {}).get("program", []))
    then = [f"'gpupool open {{name}} {port}' opens its port {port}" for port in runai_options.ports(values)]
    made = runai_options.job_values({name: value for name, value in values.items() if name not in {"port", "jupyter"}})
    if values.get("jupyter"):
        program = program or jupyter_command(DEFAULT_PYTHON)
        variables = [f"{name}={value}" for name, value in jupyter_variables().items()]
        made |= {"interactive": True, "tty": False, "env": [*variables, *made.get("env", [])]}
        then = ["'gpupool open {name}' opens JupyterLab"]
    return submit_with(made, words or [], program, "; ".join(then))
