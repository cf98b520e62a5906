"""The options of ``submit``, which no fast path reads."""

from __future__ import annotations

from gpupool.cli.options import (
    CONTAINER_OPTIONS,
    GPU_OPTIONS,
    HOST_OPTIONS,
    OUTPUT,
    PREEMPTIBLE,
    PROGRAM,
    PROGRAM_OPTIONS,
    QUEUE,
    QUEUE_OPTIONS,
    QUIET,
    REPLICAS,
    WINDOW,
    Kind,
    Option,
)

SUBMIT = (
    *GPU_OPTIONS,
    *QUEUE_OPTIONS,
    PREEMPTIBLE,
    WINDOW,
    Option("after", "--after", Kind.MANY, "Start when this has succeeded; NAME:any when it has ended.", QUEUE, "NAME"),
    *HOST_OPTIONS,
    Option("log_limit", "--log-limit", Kind.TEXT, "Most output kept (64M).", QUEUE, "MIB"),
    *PROGRAM_OPTIONS,
    Option("interactive", "--interactive", Kind.FLAG, "A session: protected within quota, one replica.", PROGRAM),
    Option("tty", "-t --tty / --no-tty", Kind.FLAG, "Give it a terminal (sessions have one).", PROGRAM),
    Option("stdin", "--stdin", Kind.FLAG, "Give it standard input, for attach.", PROGRAM),
    Option("command_follows", "--command", Kind.FLAG, "Accepted: what follows -- is always the command.", PROGRAM),
    *CONTAINER_OPTIONS,
    Option("parallelism", "--parallelism", Kind.COUNT, "Replicas at a time.", REPLICAS, "P"),
    Option("completions", "--completions", Kind.COUNT, "Replicas in all; {index} is their number.", REPLICAS, "C"),
    Option("workers", "--workers", Kind.COUNT, "A gang: so many replicas that start together.", REPLICAS, "N"),
    Option("min_workers", "--min-workers", Kind.COUNT, "The gang may start with so many.", REPLICAS, "M"),
    Option("framework", "--framework", Kind.TEXT, "How workers find each other: torch, mpi or tf.", REPLICAS, "NAME"),
    Option("gpus_per_worker", "--gpus-per-worker", Kind.COUNT, "GPUs for each worker, as -n.", REPLICAS, "G"),
    Option("processes", "--processes-per-worker", Kind.COUNT, "Ranks of each; as many as its GPUs.", REPLICAS, "R"),
    Option("ps", "--ps", Kind.COUNT, "Parameter servers beside the workers, without GPUs (tf).", REPLICAS, "S"),
    Option("chief", "--chief", Kind.FLAG, "A chief beside the workers (tf).", REPLICAS),
    Option("evaluator", "--evaluator", Kind.FLAG, "An evaluator beside the workers (tf).", REPLICAS),
    Option(
        "on_member_end",
        "--on-member-end",
        Kind.TEXT,
        "When one is lost: restart all, fail, continue.",
        REPLICAS,
        "WHAT",
    ),
    Option("within", "--within", Kind.TEXT, "The gang's nodes share this label, if possible.", REPLICAS, "LABEL"),
    Option("within_strictly", "--within-strictly", Kind.TEXT, "Likewise, or it waits.", REPLICAS, "LABEL"),
    Option("sweep", "--sweep", Kind.MANY, "A parameter's values; every combination runs.", REPLICAS, "NAME=A,B"),
    Option("sweep_list", "--sweep-list", Kind.TEXT, "Parameter sets: CSV, JSON lines, YAML.", REPLICAS, "FILE"),
    Option(
        "sweep_random", "--sweep-random", Kind.MANY, "Drawn: lr=0.001..0.1:log, n=2..8:int.", REPLICAS, "NAME=RANGE"
    ),
    Option("samples", "--samples", Kind.COUNT, "How many random draws.", REPLICAS, "N"),
    Option("seed", "--seed", Kind.COUNT, "The same draws every time.", REPLICAS, "N"),
    Option("restart", "--restart", Kind.TEXT, "never, on-failure or always.", REPLICAS, "POLICY"),
    Option("backoff_limit", "--backoff-limit", Kind.COUNT, "Failures of a replica that are forgiven.", REPLICAS, "N"),
    Option("file", "-f --file", Kind.MANY, "A job file (YAML or JSON); - is standard input.", OUTPUT, "FILE"),
    Option("dry_run", "--dry-run", Kind.FLAG, "Show what would be submitted and whether it could start.", OUTPUT),
    Option("attach", "--attach", Kind.FLAG, "Attach when it has started; its exit status.", OUTPUT),
    Option("wait_finished", "--wait-finished", Kind.FLAG, "Stay until it has ended; its exit status.", OUTPUT),
    Option("json", "--json", Kind.FLAG, "Print JSON, as the API gives it.", OUTPUT),
    QUIET,
)

NOT_OF_PLANS = frozenset({"dry_run", "attach", "wait_finished", "quiet"})
PLAN = (
    *(option for option in SUBMIT if option.name not in NOT_OF_PLANS),
    Option("kind", "--as", Kind.TEXT, "training (as submit has it), interactive, run or lease.", QUEUE, "KIND"),
    Option("lifetime", "--lifetime --for", Kind.TEXT, "How long a lease is held.", QUEUE, "TIME"),
)
