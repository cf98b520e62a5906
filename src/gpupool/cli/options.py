"""The options that start work, as one light table.

``run``, ``client``, ``submit`` and ``request_gpus`` take theirs from here. The fast path reads the table itself with
``parse``; the Typer commands are made from the same table (``commands/generated.py``), so the two cannot differ.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any


class Kind:
    """What follows an option. A plain class: importing ``enum`` would cost the fast path milliseconds."""

    FLAG = 0  # nothing; the value is true
    TEXT = 1
    COUNT = 2  # a whole number
    NUMBER = 3
    MANY = 4  # text; may be given several times


GPUS = "GPUs"
QUEUE = "Queue and limits"
PROGRAM = "Program"
REPLICAS = "Replicas and sweeps"
OUTPUT = "Output"


class Option:
    """One option: its spellings, the ``name`` of its value, and how help shows it.

    ``off`` holds the spellings that make a flag false; without either the value is None.
    """

    __slots__ = ("flags", "help", "kind", "metavar", "name", "off", "panel")

    def __init__(self, name: str, flags: str, kind: int, help: str, panel: str, metavar: str = "") -> None:  # noqa: A002 - a row of a table
        on, _, off = flags.partition(" / ")
        self.name = name
        self.flags = tuple(on.split())
        self.off = tuple(off.split())
        self.kind = kind
        self.help = help
        self.panel = panel
        self.metavar = metavar


GPU_OPTIONS = (
    Option("num_gpus", "-n --num-gpus --num_gpus", Kind.COUNT, "How many GPUs (of one node).", GPUS, "N"),
    Option("partial", "-p --partial", Kind.TEXT, "The part of each GPU: 0.1, 25%.", GPUS, "FRACTION"),
    Option(
        "gpu_memory", "-m --gpu-memory", Kind.TEXT, "The part of each GPU by its memory: 2048 (MiB), 4G.", GPUS, "MIB"
    ),
    Option("gpu", "-g --gpu", Kind.TEXT, "GPUs in one number: 2, or 0.5 for half of one.", GPUS, "GPUS"),
    Option("model", "--model", Kind.MANY, "A GPU model that will do (t4, a100); repeat for others.", GPUS, "NAME"),
    Option("compute", "--compute", Kind.TEXT, "What a part means for time: guarantee, cap or none.", GPUS, "POLICY"),
    Option("sharing", "--sharing", Kind.TEXT, "How it is kept apart: share, mps, mig, whole, advisory.", GPUS, "MODE"),
    Option(
        "placement", "--placement", Kind.TEXT, "Of several places: pack (tightest) or spread (emptiest).", GPUS, "HOW"
    ),
    Option("pool", "--pool", Kind.TEXT, "Only nodes of this pool (their label pool).", GPUS, "NAME"),
    Option("filter", "--filter", Kind.MANY, "A label the node must have, or device.name=MODEL.", GPUS, "KEY=VALUE"),
)
QUEUE_OPTIONS = (
    Option("name", "--name", Kind.TEXT, "A name for it; made from the command otherwise.", QUEUE, "NAME"),
    Option("project", "--project", Kind.TEXT, "The project whose quota is used.", QUEUE, "NAME"),
    Option("priority", "--priority", Kind.TEXT, "low, normal, high, or -1000 to 1000.", QUEUE, "LEVEL"),
    Option("wait", "--wait --timeout", Kind.TEXT, "Longest time in the queue (30m); 0 is --no-wait.", QUEUE, "TIME"),
    Option("no_wait", "--no-wait", Kind.FLAG, "Start now or fail.", QUEUE),
    Option("max_time", "--max-time", Kind.TEXT, "Longest running time.", QUEUE, "TIME"),
    Option("idle_timeout", "--idle-timeout", Kind.TEXT, "Longest time without using its GPUs.", QUEUE, "TIME"),
    Option("label", "-l --label", Kind.MANY, "A label to find it by.", QUEUE, "KEY=VALUE"),
)
WINDOW = Option("window", "--window", Kind.MANY, "Start only then: nights, 'mon-fri 20:00-08:00'.", QUEUE, "TIMES")
PREEMPTIBLE = Option(
    "preemptible", "--preemptible / --no-preemptible", Kind.FLAG, "May be interrupted for a better claim.", QUEUE
)
HOST_OPTIONS = (
    Option("cpus", "--cpus --cpu", Kind.NUMBER, "Processors of the machine at most.", QUEUE, "N"),
    Option("memory", "--memory", Kind.TEXT, "Memory of the machine at most: 4096 (MiB), 4G.", QUEUE, "MIB"),
)
PROGRAM_OPTIONS = (
    Option("env", "-e --env --environment", Kind.MANY, "A variable; KEY alone passes on yours.", PROGRAM, "KEY=VALUE"),
    Option(
        "workdir",
        "-w --workdir --working-dir",
        Kind.TEXT,
        "The folder to start in; this one otherwise.",
        PROGRAM,
        "DIR",
    ),
    Option("files", "--files / --no-files", Kind.FLAG, "Start in a copy of the folder; usual over a network.", PROGRAM),
    Option("gitignore", "--gitignore", Kind.FLAG, "Of the folder leave out what .gitignore says, too.", PROGRAM),
    Option("lock", "--lock", Kind.TEXT, "Make an environment of uv.lock or requirements.txt.", PROGRAM, "FILE"),
    Option("grace", "--grace", Kind.TEXT, "Time between TERM and KILL when stopped (10s).", PROGRAM, "TIME"),
    Option("notice_signal", "--notice-signal", Kind.TEXT, "Told so that it has to go: USR1 (TERM).", PROGRAM, "SIGNAL"),
)
TERMINAL = Option("tty", "-t --tty / --no-tty", Kind.FLAG, "Give it a terminal; by default when you have one.", PROGRAM)
QUIET = Option("quiet", "-q --quiet", Kind.FLAG, "Say nothing about waiting or starting.", OUTPUT)
CONTAINER_OPTIONS = (
    Option("image", "-i --image", Kind.TEXT, "The container image it runs in.", PROGRAM, "IMAGE"),
    Option("volume", "-v --volume", Kind.MANY, "A folder seen inside: /data:/data, ./x:/x:ro.", PROGRAM, "SRC:DST"),
    Option("pull", "--pull", Kind.TEXT, "When the image is fetched: missing, always, never.", PROGRAM, "WHEN"),
    Option("entrypoint", "--entrypoint", Kind.TEXT, "In place of the image's own entry point.", PROGRAM, "PROGRAM"),
    Option("container_user", "--container-user", Kind.TEXT, "The user inside, in a pool of your own.", PROGRAM, "USER"),
    Option("network", "--network", Kind.TEXT, "The network inside: host or none.", PROGRAM, "WHICH"),
    Option("read_only", "--read-only", Kind.FLAG, "Nothing can be written inside but to volumes.", PROGRAM),
    Option("shm", "--shm-size", Kind.TEXT, "Size of /dev/shm inside: 4G.", PROGRAM, "MIB"),
)

RUN = (
    *GPU_OPTIONS,
    *QUEUE_OPTIONS,
    PREEMPTIBLE,
    *HOST_OPTIONS,
    *PROGRAM_OPTIONS,
    TERMINAL,
    Option("detach", "-d --detach", Kind.FLAG, "Print the id and leave it running without you.", PROGRAM),
    *CONTAINER_OPTIONS,
    QUIET,
)
CLIENT = (
    Option("file", "-f --file", Kind.TEXT, "The lease's file; your last lease otherwise.", GPUS, "FILE"),
    Option("lease", "--lease", Kind.TEXT, "The lease by name or id.", GPUS, "NAME"),
    Option("max_time", "--max-time", Kind.TEXT, "Longest running time.", QUEUE, "TIME"),
    *PROGRAM_OPTIONS,
    TERMINAL,
    QUIET,
)
LEASE = (
    *GPU_OPTIONS,
    *QUEUE_OPTIONS,
    Option("lifetime", "--lifetime --for", Kind.TEXT, "How long it is held, from when it is granted.", QUEUE, "TIME"),
    Option("file", "-f --file", Kind.TEXT, "Where to write the lease's file.", OUTPUT, "FILE"),
    Option("json", "--json", Kind.FLAG, "Print the lease as JSON.", OUTPUT),
    QUIET,
)


class Unusual(Exception):  # noqa: N818 - not an error: the full command line explains better
    """The arguments are for the full command line: help, a mistake, a form this parser does not read."""


def parse(options: Iterable[Option], argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values by name (only those given) and the command that follows; raises ``Unusual``."""
    known = {flag: (option, True) for option in options for flag in option.flags}
    known |= {flag: (option, False) for option in options for flag in option.off}
    values: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return values, rest
        if not word.startswith("-") or word == "-":
            return values, [word, *rest]
        flag, attached = _split(word)
        if flag not in known:
            raise Unusual
        option, on = known[flag]
        if option.kind is Kind.FLAG:
            if attached is not None:
                raise Unusual
            values[option.name] = on
            continue
        if attached is None:
            if not rest:
                raise Unusual
            attached = rest.pop(0)
        _store(values, option, attached)
    return values, []


def _split(word: str) -> tuple[str, str | None]:
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return flag, value if equals else None
    return word[:2], word[2:] or None


def _store(values: dict[str, Any], option: Option, text: str) -> None:
    try:
        if option.kind is Kind.MANY:
            values.setdefault(option.name, []).append(text)
        elif option.kind is Kind.COUNT:
            values[option.name] = int(text)
        elif option.kind is Kind.NUMBER:
            values[option.name] = float(text)
        else:
            values[option.name] = text
    except ValueError:
        raise Unusual from None
