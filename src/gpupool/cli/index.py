"""Every command in a line, and the module that has it.

The overview, misspelt commands and completion of the first word need no more than this, and so neither Typer nor any
command is imported for them.
"""

from __future__ import annotations

PROGRAM = "gpupool"

PANELS: dict[str, dict[str, tuple[str, str]]] = {
    "Run programs": {
        "run": ("running", "Run a program on GPUs, or a slice of one"),
        "submit": ("submitting", "Queue work that runs without your terminal"),
        "apply": ("kubernetes", "Run what Kubernetes manifests describe"),
        "plan": ("planning", "Where and when it would start if submitted now"),
    },
    "Hold GPUs": {
        "request_gpus": ("leasing", "Hold GPUs until they are released"),
        "client": ("running", "Run a program on GPUs that you hold"),
        "release_gpus": ("leasing", "Give them back"),
        "extend": ("leasing", "Hold them longer"),
        "list_gpus": ("machines", "What is free of each GPU"),
    },
    "Look": {
        "ps": ("looking", "The workloads"),
        "list": ("looking", "Jobs, nodes or projects"),
        "get": ("kubernetes", "Objects that were applied, and nodes, as kubectl lists them"),
        "describe": ("looking", "Everything of a job, node or project"),
        "why": ("looking", "Why a workload waits, and for how long"),
        "logs": ("logs", "What a program wrote"),
        "events": ("looking", "What happened"),
        "audit": ("auditing", "Who did what to what, by filters"),
        "dashboard": ("dashboard", "The pool in your browser, signed in by a link"),
        "top": ("watching", "Nodes, GPUs and workloads, live"),
        "smi": ("machines", "What every GPU does now"),
        "nodes": ("machines", "The machines"),
        "usage": ("people", "GPU hours by project and user"),
        "report": ("reporting", "Who used what, waited how long, and what it costs"),
        "fairshare": ("fairness", "Who is due what, and whose turn is next"),
    },
    "Control work": {
        "attach": ("entering", "Connect your terminal to a running program"),
        "exec": ("entering", "Run another program on a workload's GPUs"),
        "shell": ("entering", "Open your shell on a workload's GPUs"),
        "bash": ("entering", "Open bash there"),
        "fetch": ("fetching", "Bring back what work made in its folder"),
        "forward": ("fetching", "Let a port of this machine lead to one of a program"),
        "wait": ("controlling", "Wait until workloads have ended"),
        "suspend": ("controlling", "Stop workloads but keep them"),
        "resume": ("controlling", "Queue suspended ones again"),
        "priority": ("controlling", "Let waiting ones come earlier or later"),
        "stop": ("controlling", "End workloads"),
        "delete": ("controlling", "End and forget them"),
    },
    "The pool": {
        "up": ("pools", "Start the pool"),
        "down": ("pools", "Stop it; jobs run on"),
        "status": ("pools", "Whether it runs, and how"),
        "health": ("pools", "Whether it and its GPUs are well"),
        "backup": ("copying", "Copy its database while it runs"),
        "restore": ("copying", "Put such a copy back"),
        "doctor": ("pools", "Find what is wrong with this machine"),
        "login": ("remote", "Use a pool over the network"),
        "login_code": ("remote", "A code to log in with, once"),
        "logout": ("remote", "Forget it again"),
        "whoami": ("pools", "Who the pool takes you for"),
        "config": ("projects", "Your own defaults"),
        "completion": ("completion", "Teach your shell to complete"),
        "version": ("pools", "The version"),
    },
    "Administer": {
        "project": ("projects", "Projects and quotas"),
        "department": ("fairness", "Departments: projects that share a quota"),
        "user": ("people", "Users and roles"),
        "token": ("people", "Tokens for use over a network"),
        "join": ("joining", "Make this machine a node of a cluster"),
        "leave": ("joining", "Take it out again"),
        "join_token": ("joining", "Tokens that let machines join"),
        "cordon": ("machines", "Let a node take nothing new"),
        "drain": ("machines", "The same, and send its training elsewhere"),
        "uncordon": ("machines", "Let it take work again"),
        "sharing": ("machines", "How parts of a node's GPUs are kept apart"),
        "warnings": ("warnings", "Mail and webhooks before GPUs are taken"),
        "policy": ("policies", "How the pool is shared over time"),
        "reserve": ("reserving", "Keep nodes for a class, or for maintenance"),
        "image": ("imaging", "Container images of the nodes"),
        "node": ("labels", "Labels of nodes; nodes that are lost or have left"),
        "simulate": ("simulating", "The scheduler over a trace of work, in fast time"),
    },
}
MODULES = {name: module for commands in PANELS.values() for name, (module, _) in commands.items()}

ABOUT = """\
Usage: gpupool COMMAND [OPTIONS] [ARGS]...

Share the GPUs a team owns: queue, place, start, isolate, meter and free.

Examples:
  gpupool run -p 0.1 -- python3 train.py       a tenth of a GPU; starts a pool if there is none
  gpupool submit night -g 1 -- python3 train.py
  gpupool ps
"""
STATUS = """\
Exit status: the program's own for run, client, exec, shell and attach; 125 for the pool's own errors, 126 and 127
for a program that cannot be executed or found, 128+N for one that signal N ended; else 2 for a mistake in the command.
'gpupool COMMAND --help' says more and gives examples."""


def overview() -> str:
    """The text of ``gpupool --help``."""
    parts = [ABOUT]
    for panel, commands in PANELS.items():
        parts.append(f"{panel}:\n" + "".join(f"  {name:<14}{about}\n" for name, (_, about) in commands.items()))
    return "\n".join([*parts, STATUS])


def known_name(word: str) -> str | None:
    """The command that a word means: dashes may stand for underscores."""
    name = word.replace("-", "_")
    return name if name in MODULES else None


def near_names(word: str) -> list[str]:
    """Commands that a misspelt word may have meant."""
    import difflib

    return difflib.get_close_matches(word.replace("-", "_"), MODULES, n=3, cutoff=0.6)
