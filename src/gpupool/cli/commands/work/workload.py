"""``workload``: aliases of the commands for workloads."""

from __future__ import annotations

import typer

from gpupool.cli.commands.common import add_aliases, add_group


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    examples = ["gpupool workload list", "gpupool workload describe train-1"]
    group = add_group(app, "workload", "List, inspect and control workloads.", *examples)
    add_aliases(group, "workload")
