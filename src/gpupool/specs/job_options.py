"""The options of a job: one row for each, with its spellings, kind and help.

The command line, the request body and the submission form are made from these rows. The module imports nothing: it is
on the fast path of ``gpupool run``.
"""

from __future__ import annotations


class OptionKind:
    """The kind of an option's value. A plain class: importing ``enum`` would slow down the fast path."""

    FLAG = 0  # no value; true when given
    TEXT = 1
    COUNT = 2  # a whole number
    NUMBER = 3
    REPEATED = 4  # text; may be given several times


FLAG, TEXT, COUNT, NUMBER, REPEATED = (
    OptionKind.FLAG,
    OptionKind.TEXT,
    OptionKind.COUNT,
    OptionKind.NUMBER,
    OptionKind.REPEATED,
)
GPUS = "GPUs"
QUEUE = "Queue and limits"
PROGRAM = "Program"
REPLICAS = "Replicas and sweeps"
OUTPUT = "Output"


class Option:
    """One option: its spellings, the ``name`` of its value, and its help.

    ``off`` has the spellings that make a flag false. Without an option its value is None.
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

    @property
    def long(self) -> str:
        """Return the first spelling with two dashes."""
        return next(flag for flag in self.flags if flag.startswith("--"))


class FormInput:
    """The input of a field in the submission form: a label, its section of the page, and what helps to fill it.

    ``section`` is limits, program or course; empty: ``submit.html`` places it. ``options`` are (value, text) to choose
    from; empty: free text.
    """

    __slots__ = ("hint", "label", "options", "placeholder", "section")

    def __init__(
        self,
        label: str,
        section: str = "",
        placeholder: str = "",
        hint: str = "",
        options: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.label = label
        self.section = section
        self.placeholder = placeholder
        self.hint = hint
        self.options = options


class JobField(Option):
    """An option that is a field of the request: the value is copied to the field with the option's name.

    ``form``: its input in the submission form; None: the form does not have it, or reads it by its own function.
    """

    __slots__ = ("form",)

    def __init__(  # noqa: PLR0913 - a row of a table
        self,
        name: str,
        flags: str,
        kind: int,
        help: str,  # noqa: A002 - as in Option
        panel: str,
        metavar: str = "",
        *,
        form: FormInput | None = None,
    ) -> None:
        super().__init__(name, flags, kind, help, panel, metavar)
        self.form = form


GPU_OPTIONS = (
    Option("num_gpus", "-n --num-gpus --num_gpus", COUNT, "Request this number of GPUs on one node.", GPUS, "N"),
    Option("partial", "-p --partial", TEXT, "Request this fraction of each GPU: 0.1, 25%.", GPUS, "FRACTION"),
    Option("gpu_memory", "-m --gpu-memory", TEXT, "Request this memory of each GPU: 2048 (MiB), 4G.", GPUS, "MIB"),
    Option("gpu", "-g --gpu", TEXT, "Request GPUs as one number: 2, or 0.5 for half a GPU.", GPUS, "GPUS"),
    Option(
        "model",
        "--gpu-model --model",
        REPEATED,
        "Require this GPU model (t4, a100); repeat to accept several.",
        GPUS,
        "NAME",
    ),
    Option("compute", "--compute", TEXT, "Set the compute policy: guarantee (default), cap or none.", GPUS, "POLICY"),
    Option("sharing", "--sharing", TEXT, "Set the sharing mode: share, mps, mig, whole, advisory.", GPUS, "MODE"),
    Option("placement", "--placement", TEXT, "Place on full nodes (pack) or empty nodes (spread).", GPUS, "HOW"),
    Option("pool", "--pool", TEXT, "Use only nodes with this value of the label pool.", GPUS, "NAME"),
    Option(
        "filter", "--filter", REPEATED, "Require this node label, or device.name=MODEL; repeatable.", GPUS, "KEY=VALUE"
    ),
    Option(
        "server_list",
        "--server-list --server_list",
        TEXT,
        "Use only these nodes, by name or address: 'gpu1;gpu2'.",
        GPUS,
        "NODES",
    ),
)
QUEUE_OPTIONS = (
    JobField("name", "--name", TEXT, "Set the name; default: from the command.", QUEUE, "NAME"),
    JobField("project", "--project", TEXT, "Use the quota of this project; default: yours.", QUEUE, "NAME"),
    JobField("priority", "--priority", TEXT, "Set the priority: low, normal, high, or -1000 to 1000.", QUEUE, "LEVEL"),
    JobField(
        "wait",
        "--wait --timeout",
        TEXT,
        "Limit the time in the queue: 30m; 0 is --no-wait.",
        QUEUE,
        "TIME",
        form=FormInput("Queue time limit", "limits", placeholder="30m", hint="0: start now or fail."),
    ),
    JobField(
        "begin",
        "--begin",
        TEXT,
        "Do not start before this time from now: 2h.",
        QUEUE,
        "TIME",
        form=FormInput("Begin in", "limits", placeholder="2h", hint="It does not start before this time from now."),
    ),
    Option("no_wait", "--no-wait", FLAG, "Start immediately or fail.", QUEUE),
    JobField(
        "max_time",
        "--max-time",
        TEXT,
        "Limit the run time: 2h.",
        QUEUE,
        "TIME",
        form=FormInput("Time limit", placeholder="4h", hint="Workloads with a short limit can be backfilled."),
    ),
    JobField(
        "idle_timeout",
        "--idle-timeout",
        TEXT,
        "Stop after this time without GPU use: 30m.",
        QUEUE,
        "TIME",
        form=FormInput("Idle limit", "limits", placeholder="30m", hint="Longest time without using its GPUs."),
    ),
    Option(
        "label",
        "-l --label",
        REPEATED,
        "Add a label, for searches; repeatable. Nodes (gpu1;gpu2): as --server-list.",
        QUEUE,
        "KEY=VALUE",
    ),
)
WINDOW = Option(
    "window", "--window", REPEATED, "Start only in these hours: nights, 'mon-fri 20:00-08:00'.", QUEUE, "TIMES"
)
PREEMPTIBLE = JobField(
    "preemptible", "--preemptible / --no-preemptible", FLAG, "Allow preemption by workloads with a higher claim.", QUEUE
)
HOST_OPTIONS = (
    JobField(
        "cpus", "--cpus --cpu", NUMBER, "Limit the CPUs of the node.", QUEUE, "N", form=FormInput("CPU limit", "limits")
    ),
    JobField(
        "memory",
        "--memory",
        TEXT,
        "Limit the memory of the node: 4096 (MiB), 4G.",
        QUEUE,
        "MIB",
        form=FormInput("Host memory limit", "limits", placeholder="32G"),
    ),
)
PROGRAM_OPTIONS = (
    Option(
        "env",
        "-e --env --environment",
        REPEATED,
        "Set an environment variable; KEY alone copies yours.",
        PROGRAM,
        "KEY=VALUE",
    ),
    Option(
        "workdir", "-w --workdir --working-dir", TEXT, "Start in this folder; default: the current one.", PROGRAM, "DIR"
    ),
    Option(
        "files",
        "--files / --no-files",
        FLAG,
        "Upload the folder and start in the copy; default over a network.",
        PROGRAM,
    ),
    Option("gitignore", "--gitignore", FLAG, "Do not upload files that .gitignore excludes.", PROGRAM),
    JobField("workspace", "--workspace", TEXT, "Run in the home of this workspace.", PROGRAM, "NAME"),
    Option("lock", "--lock", TEXT, "Create an environment from uv.lock or requirements.txt.", PROGRAM, "FILE"),
    JobField("grace", "--grace", TEXT, "Set the time between TERM and KILL on a stop (10s).", PROGRAM, "TIME"),
    JobField(
        "notice_signal",
        "--notice-signal",
        TEXT,
        "Send this signal before preemption: USR1; default TERM.",
        PROGRAM,
        "SIGNAL",
    ),
    JobField("lazy", "--lazy", FLAG, "Hold no GPU until the program first uses CUDA.", PROGRAM),
    JobField(
        "return_after",
        "--return-after",
        TEXT,
        "With --lazy: return GPUs that no process uses (5m).",
        PROGRAM,
        "TIME",
    ),
    JobField(
        "on_preempt",
        "--on-preempt",
        TEXT,
        "On preemption: signal (default), suspend, or kill at once.",
        PROGRAM,
        "WHAT",
    ),
    JobField(
        "checkpoint", "--checkpoint", TEXT, "Declare its checkpoint interval: 30m; default: never.", PROGRAM, "TIME"
    ),
)
TERMINAL = Option("tty", "-t --tty / --no-tty", FLAG, "Give it a terminal; default: if you have one.", PROGRAM)
QUIET = Option("quiet", "-q --quiet", FLAG, "Print no status messages.", OUTPUT)
CONTAINER_OPTIONS = (
    JobField("image", "-i --image", TEXT, "Run in this container image.", PROGRAM, "IMAGE"),
    Option(
        "volume",
        "-v --volume",
        REPEATED,
        "Mount a folder in the container: /data:/data, ./x:/x:ro.",
        PROGRAM,
        "SRC:DST",
    ),
    JobField("pull", "--pull", TEXT, "Pull the image: missing (default), always or never.", PROGRAM, "WHEN"),
    Option("entrypoint", "--entrypoint", TEXT, "Replace the entry point of the image.", PROGRAM, "PROGRAM"),
    JobField(
        "container_user",
        "--container-user",
        TEXT,
        "Set the user in the container; only in your own pool.",
        PROGRAM,
        "USER",
    ),
    JobField("network", "--network", TEXT, "Set the network of the container: host or none.", PROGRAM, "WHICH"),
    JobField("read_only", "--read-only", FLAG, "Mount the image read-only; volumes stay writable.", PROGRAM),
    JobField("shm", "--shm-size", TEXT, "Set the size of /dev/shm in the container: 4G.", PROGRAM, "MIB"),
)
LOG_LIMIT = JobField(
    "log_limit",
    "--log-limit",
    TEXT,
    "Limit the stored output (64M).",
    QUEUE,
    "MIB",
    form=FormInput("Stored output limit", "limits", placeholder="64M"),
)
SESSION_OPTIONS = (
    Option("interactive", "--interactive", FLAG, "Submit an interactive session, protected within quota.", PROGRAM),
    JobField("tty", "-t --tty / --no-tty", FLAG, "Give it a terminal; default: only sessions.", PROGRAM),
    JobField("stdin", "--stdin", FLAG, "Open its standard input, for attach.", PROGRAM),
    JobField(
        "git",
        "--git-sync",
        TEXT,
        "Clone this repository into the folder first: URL, or repository=URL,rev=REV,path=DIR.",
        PROGRAM,
        "URL",
        form=FormInput("Git repository", "program", placeholder="https://host/team/repository.git"),
    ),
    JobField(
        "ttl",
        "--ttl --ttl-after-finish",
        TEXT,
        "Delete it with its output this time after its end: 7d.",
        QUEUE,
        "TIME",
        form=FormInput("Delete after", "limits", placeholder="7d"),
    ),
    JobField(
        "mail",
        "--mail-type",
        TEXT,
        "Send mail to your address: begin, end, fail, all, none; default: unexpected ends.",
        QUEUE,
        "WHEN",
        form=FormInput("Mail at", "limits", placeholder="end,fail"),
    ),
    Option("command_follows", "--command", FLAG, "No effect: words after -- are always the command.", PROGRAM),
)
REPLICA_OPTIONS = (
    JobField(
        "parallelism",
        "--parallelism",
        COUNT,
        "Run this number of replicas at a time.",
        REPLICAS,
        "P",
        form=FormInput("Maximum at a time"),
    ),
    JobField(
        "completions",
        "--completions",
        COUNT,
        "Run this number of replicas; {index} is the index.",
        REPLICAS,
        "C",
        form=FormInput("Replicas"),
    ),
    Option("workers", "--workers", COUNT, "Submit a gang of this size: all start together.", REPLICAS, "N"),
    Option("min_workers", "--min-workers", COUNT, "Let the gang start with at least this number.", REPLICAS, "M"),
    JobField("framework", "--framework", TEXT, "Set up the workers for torch, mpi or tf.", REPLICAS, "NAME"),
    Option(
        "gpus_per_worker", "--gpus-per-worker", COUNT, "Request this number of GPUs per worker, as -n.", REPLICAS, "G"
    ),
    JobField(
        "processes", "--processes-per-worker", COUNT, "Set the ranks per worker; default: its GPUs.", REPLICAS, "R"
    ),
    Option("ps", "--ps", COUNT, "Add parameter servers without GPUs (tf).", REPLICAS, "S"),
    Option("chief", "--chief", FLAG, "Add a chief (tf).", REPLICAS),
    Option("evaluator", "--evaluator", FLAG, "Add an evaluator (tf).", REPLICAS),
    JobField(
        "on_member_end",
        "--on-member-end",
        TEXT,
        "When a member is lost: restart all, fail, continue.",
        REPLICAS,
        "WHAT",
    ),
    Option("within", "--within", TEXT, "Prefer nodes with equal values of this label.", REPLICAS, "LABEL"),
    Option(
        "within_strictly",
        "--within-strictly",
        TEXT,
        "Require nodes with equal values of this label.",
        REPLICAS,
        "LABEL",
    ),
    Option("mixed_models", "--mixed-models", FLAG, "Allow workers on GPUs of different models.", REPLICAS),
    Option("sweep", "--sweep", REPEATED, "Sweep a parameter's values; all combinations run.", REPLICAS, "NAME=A,B"),
    Option("sweep_list", "--sweep-list", TEXT, "Read parameter sets: CSV, JSON lines, YAML.", REPLICAS, "FILE"),
    Option(
        "sweep_random",
        "--sweep-random",
        REPEATED,
        "Draw a parameter: lr=0.001..0.1:log, n=2..8:int.",
        REPLICAS,
        "NAME=RANGE",
    ),
    Option("samples", "--samples", COUNT, "Set the number of random draws.", REPLICAS, "N"),
    Option("seed", "--seed", COUNT, "Seed the random draws.", REPLICAS, "N"),
    JobField(
        "restart",
        "--restart",
        TEXT,
        "Set the restart policy: never, on-failure or always.",
        REPLICAS,
        "POLICY",
        form=FormInput(
            "Restart policy",
            "course",
            options=(
                ("", "default of the kind"),
                ("never", "never"),
                ("on-failure", "on failure"),
                ("always", "always"),
            ),
        ),
    ),
    JobField(
        "backoff_limit",
        "--backoff-limit",
        COUNT,
        "Retry a failed replica up to this number of times.",
        REPLICAS,
        "N",
        form=FormInput("Retries", "course", placeholder="6"),
    ),
)

# By the commands that have them. Container options are apart: an empty value means that it is not given.
SHARED_OPTIONS = (*QUEUE_OPTIONS, PREEMPTIBLE, *HOST_OPTIONS, *PROGRAM_OPTIONS)
SUBMIT_OPTIONS = (LOG_LIMIT, *SESSION_OPTIONS, *REPLICA_OPTIONS)
JOB_FIELDS = tuple(option for option in (*SHARED_OPTIONS, *SUBMIT_OPTIONS) if isinstance(option, JobField))
