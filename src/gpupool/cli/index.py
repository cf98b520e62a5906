"""Index of commands: one line for each command, its module, and aliases.

The overview, unknown commands and completion of the first word need only this module. They do not import Typer or a
command.
"""

from __future__ import annotations

PROGRAM = "gpupool"

PANELS: dict[str, dict[str, tuple[str, str]]] = {
    "Run and submit": {
        "run": ("work.run", "Run a program on GPUs, or on a slice of one"),
        "submit": ("work.submit", "Queue work that runs without your terminal"),
        "notebook": ("workspaces.notebook", "Start JupyterLab in the pool and open it"),
        "training": ("workspaces.runai", "Submit and control training, as in Run:ai"),
        "inference": ("workspaces.runai", "Submit and control services, as in Run:ai"),
        "serve": ("work.service", "Start a server with a stable address, as a service"),
        "apply": ("work.apply", "Create workloads from Kubernetes manifests"),
        "plan": ("work.plan", "Show where and when a submission would start"),
        "jupyter": ("workspaces.jupyter", "Run Jupyter kernels on slices of GPUs"),
    },
    "Hold GPUs": {
        "request-gpus": ("work.lease", "Request a lease of GPUs"),
        "client": ("work.run", "Run a program on leased GPUs"),
        "release-gpus": ("work.lease", "Release a lease"),
        "extend": ("work.lease", "Extend a lease"),
        "list-gpus": ("nodes.nodes", "List GPUs with their free capacity"),
    },
    "Workspaces": {
        "workspace": ("workspaces.workspace", "Manage named homes that stay when their GPUs are released"),
    },
    "Services": {
        "service": ("work.service", "List, scale, update and stop services"),
    },
    "Inspect": {
        "ps": ("work.inspect", "List workloads"),
        "list": ("work.inspect", "List jobs, nodes, projects or templates"),
        "get": ("work.apply", "List applied objects and nodes, like kubectl"),
        "describe": ("work.inspect", "Show the details of a job, node or project"),
        "why": ("work.inspect", "Show why a workload waits, and for how long"),
        "logs": ("work.logs", "Print the output of a program"),
        "results": ("work.results", "Show parameters and metrics of a sweep"),
        "events": ("work.inspect", "Show events"),
        "audit": ("people.audit", "Search the audit record"),
        "dashboard": ("pool.dashboard", "Open the dashboard in your browser"),
        "top": ("pool.top", "Show nodes, GPUs and workloads, live"),
        "smi": ("nodes.nodes", "Show the activity of every GPU"),
        "nodes": ("nodes.nodes", "List nodes"),
        "usage": ("people.usage", "Show GPU hours by project and user"),
        "report": ("people.report", "Show GPU use, waiting times and costs"),
        "fairshare": ("people.fairshare", "Show fair shares and the scheduling order"),
    },
    "Control workloads": {
        "workload": ("work.control", "List, inspect and control workloads"),
        "attach": ("work.attach", "Connect your terminal to a running program"),
        "exec": ("work.attach", "Run another program on a workload's GPUs"),
        "shell": ("work.attach", "Open your shell on a workload's GPUs"),
        "bash": ("work.attach", "Open bash on a workload's GPUs"),
        "ssh": ("workspaces.ssh", "Open an SSH session in a workload"),
        "ssh-proxy": ("workspaces.ssh", "Carry the connection of an SSH client"),
        "open": ("workspaces.notebook", "Open a port of a workload in your browser"),
        "fetch": ("work.fetch", "Download files of a workload"),
        "forward": ("work.fetch", "Forward ports to a program"),
        "wait": ("work.control", "Wait until workloads have ended"),
        "checkpointed": ("work.control", "Report a saved checkpoint from a program"),
        "suspend": ("work.control", "Stop workloads but keep them"),
        "restart": ("work.control", "Restart programs on the same GPUs"),
        "resume": ("work.control", "Queue suspended workloads again"),
        "priority": ("work.control", "Change the priority of queued workloads"),
        "stop": ("work.control", "Stop workloads"),
        "delete": ("work.control", "Stop and delete workloads"),
    },
    "Pool": {
        "up": ("pool.pool", "Start the pool"),
        "down": ("pool.pool", "Stop the pool; jobs continue"),
        "status": ("pool.pool", "Show the state of the pool"),
        "pool": ("pool.storage", "Show what the pool stores, and for how long"),
        "health": ("pool.pool", "Check the pool and its GPUs"),
        "backup": ("pool.backup", "Copy the database of the pool"),
        "restore": ("pool.backup", "Restore a copy of the database"),
        "doctor": ("pool.pool", "Find problems of this machine"),
        "bench": ("pool.bench", "Measure the pool with small benchmarks"),
        "login": ("pool.login", "Log in to a pool over the network"),
        "login-code": ("pool.login", "Create a code to log in once"),
        "logout": ("pool.login", "Log out of a pool"),
        "whoami": ("pool.pool", "Show the authenticated user"),
        "config": ("people.project", "Show and change your defaults"),
        "completion": ("pool.completion", "Print a shell completion script"),
        "version": ("pool.pool", "Print the version"),
    },
    "Administration": {
        "project": ("people.project", "Manage projects and quotas"),
        "department": ("people.fairshare", "Manage departments, which share a quota"),
        "user": ("people.user", "Manage users and roles"),
        "token": ("people.user", "Manage tokens for use over a network"),
        "join": ("nodes.join", "Make this machine a node of a cluster"),
        "leave": ("nodes.join", "Remove this machine from its cluster"),
        "join-token": ("nodes.join", "Manage tokens with which machines join"),
        "node": ("nodes.label", "List, inspect and manage nodes"),
        "cordon": ("nodes.nodes", "Place nothing new on a node"),
        "drain": ("nodes.nodes", "Cordon a node and requeue its training"),
        "uncordon": ("nodes.nodes", "Let a node accept workloads again"),
        "verify": ("nodes.verify", "Check GPUs by doing work on them"),
        "sharing": ("nodes.nodes", "Show or set the sharing mode of a node's GPUs"),
        "warnings": ("pool.warnings", "Configure mail and webhooks to users"),
        "policy": ("pool.policy", "Show and change the scheduling policy"),
        "reserve": ("nodes.reserve", "Reserve nodes for users or maintenance"),
        "image": ("nodes.image", "Manage container images of nodes"),
        "compat": ("pool.compat", "Install commands with the names of other systems"),
        "simulate": ("pool.simulate", "Simulate the scheduler over a trace"),
    },
}
COMMANDS = {name: command for commands in PANELS.values() for name, command in commands.items()}
MODULES = {name: module for name, (module, _) in COMMANDS.items()}
PROGRAM_STATUS_COMMANDS = frozenset({"run", "client", "exec", "shell", "bash"})  # they exit with the program's status

# Words of VMware Bitfusion and Run:ai, by the command that does the same.
SYNONYMS = {"localhealth": "doctor", "stats": "usage", "dealloc": "release-gpus", "port-forward": "forward"}

_CONTROL = {
    "describe": "describe",
    "logs": "logs",
    "exec": "exec",
    "bash": "bash",
    "attach": "attach",
    "port-forward": "forward",
    "suspend": "suspend",
    "resume": "resume",
}

# ``gpupool NOUN VERB`` runs the command on the right.
ALIASES: dict[str, dict[str, str]] = {
    "workspace": _CONTROL,
    "training": {"list": "ps", "delete": "delete", **_CONTROL},
    "inference": {
        "list": "service list",
        "describe": "service describe",
        "logs": "service logs",
        "update": "service update",
        "suspend": "service stop",
        "delete": "service delete",
    },
    "node": {
        "list": "nodes",
        "describe": "describe node",
        "cordon": "cordon",
        "verify": "verify",
        "uncordon": "uncordon",
        "drain": "drain",
        "sharing": "sharing",
    },
    "workload": {
        "submit": "submit",
        "plan": "plan",
        "list": "ps",
        "describe": "describe",
        "why": "why",
        "logs": "logs",
        "events": "events",
        "attach": "attach",
        "exec": "exec",
        "shell": "shell",
        "ssh": "ssh",
        "open": "open",
        "fetch": "fetch",
        "forward": "forward",
        "wait": "wait",
        "suspend": "suspend",
        "restart": "restart",
        "resume": "resume",
        "priority": "priority",
        "stop": "stop",
        "delete": "delete",
    },
}

ABOUT = """\
Usage: gpupool COMMAND [OPTIONS] [ARGS]...

Share the GPUs of a team: queue, place, start, isolate, meter and release.

Examples:
  gpupool run -p 0.1 -- python3 train.py       a tenth of a GPU; starts a pool if there is none
  gpupool submit night -g 1 -- python3 train.py
  gpupool ps
"""
STATUS = """\
Exit status: the program's own for run, client, exec, shell and attach; 125 for errors of the pool, 126 and 127
for a program that cannot be executed or found, 128+N for a program that signal N ended; 2 for usage errors.
'gpupool COMMAND --help' shows the options and examples of a command."""


def overview() -> str:
    """Return the text of ``gpupool --help``."""
    parts = [ABOUT]
    for panel, commands in PANELS.items():
        parts.append(f"{panel}:\n" + "".join(f"  {name:<14}{about}\n" for name, (_, about) in commands.items()))
    return "\n".join([*parts, STATUS])


def known_name(word: str) -> str | None:
    """Return the command of a word, or None. Underscores may replace the dashes of a name."""
    name = word.replace("_", "-")
    name = SYNONYMS.get(name, name)
    return name if name in COMMANDS else None


def resolve_alias(argv: list[str]) -> list[str]:
    """Return the command line with ``NOUN VERB`` replaced by its command. ``argv[0]`` is a known name."""
    target = ALIASES.get(argv[0], {}).get(argv[1]) if len(argv) > 1 else None
    return [*target.split(), *argv[2:]] if target else argv


OTHER_SYSTEMS = {  # commands of Slurm and Run:ai, and what does the same
    "sbatch": "submit",
    "srun": "run",
    "salloc": "request-gpus",
    "squeue": "ps",
    "scancel": "stop",
    "sinfo": "nodes",
    "sacct": "ps -a",
    "scontrol": "describe",
    "submit-dist": "training pytorch submit",
    "pytorch": "training pytorch submit",
    "mpi": "training mpi submit",
}


def near_names(word: str) -> list[str]:
    """Return commands that are similar to a misspelt word, or do the same as a command of Slurm or Run:ai."""
    import difflib

    if word in OTHER_SYSTEMS:
        return [OTHER_SYSTEMS[word]]
    return difflib.get_close_matches(word.replace("_", "-"), COMMANDS, n=3, cutoff=0.6)
