"""The options of ``submit``, ``plan`` and ``notebook``, which have no fast path."""

from __future__ import annotations

from gpupool.specs.job_options import (
    CONTAINER_OPTIONS,
    GPU_OPTIONS,
    HOST_OPTIONS,
    LOG_LIMIT,
    OUTPUT,
    PREEMPTIBLE,
    PROGRAM,
    PROGRAM_OPTIONS,
    QUEUE,
    QUEUE_OPTIONS,
    QUIET,
    REPLICA_OPTIONS,
    SESSION_OPTIONS,
    WINDOW,
    JobField,
    Option,
    OptionKind,
)

SUBMIT = (
    *GPU_OPTIONS,
    *QUEUE_OPTIONS,
    PREEMPTIBLE,
    WINDOW,
    Option(
        "after",
        "--after",
        OptionKind.REPEATED,
        "Start after this workload succeeded; NAME:any: ended; NAME:failure: failed.",
        QUEUE,
        "NAME",
    ),
    *HOST_OPTIONS,
    LOG_LIMIT,
    *PROGRAM_OPTIONS,
    *SESSION_OPTIONS,
    *CONTAINER_OPTIONS,
    *REPLICA_OPTIONS,
    Option(
        "file",
        "-f --file",
        OptionKind.REPEATED,
        "Read jobs from a YAML or JSON file; -: standard input.",
        OUTPUT,
        "FILE",
    ),
    Option(
        "template",
        "--template",
        OptionKind.TEXT,
        "Begin with the options in this file of ~/.config/gpupool/templates.",
        OUTPUT,
        "NAME",
    ),
    Option("dry_run", "--dry-run", OptionKind.FLAG, "Show the request and its plan without submitting.", OUTPUT),
    Option("attach", "--attach", OptionKind.FLAG, "Attach when it starts; return its exit status.", OUTPUT),
    Option("wait_finished", "--wait-finished", OptionKind.FLAG, "Wait until it ends; return its exit status.", OUTPUT),
    Option("json", "--json", OptionKind.FLAG, "Print the JSON of the API.", OUTPUT),
    QUIET,
)
NO_BROWSER = Option("no_browser", "--no-browser", OptionKind.FLAG, "Print the address instead.", OUTPUT)
LOCAL_PORT = Option(
    "port", "--port", OptionKind.COUNT, "Listen on this port of this machine; default: a free one.", OUTPUT, "PORT"
)
NOTEBOOK = (
    *GPU_OPTIONS,
    *QUEUE_OPTIONS,
    PREEMPTIBLE,
    *HOST_OPTIONS,
    LOG_LIMIT,
    Option(
        "python",
        "--python",
        OptionKind.TEXT,
        "Use the JupyterLab of this Python on the node; default: python3.",
        PROGRAM,
        "PATH",
    ),
    *PROGRAM_OPTIONS,
    *CONTAINER_OPTIONS,
    LOCAL_PORT,
    NO_BROWSER,
    QUIET,
)

NOT_FOR_PLAN = frozenset({"dry_run", "attach", "wait_finished", "quiet"})
PLAN_OPTIONS = (
    JobField("kind", "--as", OptionKind.TEXT, "Plan as training (default), interactive, run or lease.", QUEUE, "KIND"),
    JobField("lifetime", "--lifetime --for", OptionKind.TEXT, "Set the lifetime of a lease.", QUEUE, "TIME"),
)
PLAN = (*(option for option in SUBMIT if option.name not in NOT_FOR_PLAN), *PLAN_OPTIONS)
