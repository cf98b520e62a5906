"""The option names of Run:ai in ``workspace|training|inference submit``: one table over the options of gpupool."""

from __future__ import annotations

import copy
import secrets
from typing import TYPE_CHECKING, Any

from gpupool.cli.request.service_options import SERVE
from gpupool.cli.request.submit_options import SUBMIT
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.job_options import GPUS, PROGRAM, QUEUE, REPLICAS, Option, OptionKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Values = dict[str, Any]
# By the name of an option: the names that it has in Run:ai.
FLAGS = {
    "gpu": "--gpu-devices-request --gpu-devices",
    "partial": "--gpu-portion-request --gpu-portion",
    "gpu_memory": "--gpu-memory-request",
    "pool": "--node-pools --node-pool",
    "cpus": "--cpu-core-request",
    "memory": "--cpu-memory-request",
    "env": "--environment-variable",
    "project": "-p",
    "ttl": "--auto-deletion-time-after-completion",
    "max_time": "--max-duration",
}
SERVICE_FLAGS = {"service_port": "--serving-port", "concurrency": "--metric-threshold"}
DROPPED = frozenset({"-p"})  # of --partial: it is the project in Run:ai
PULL = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}
LARGE_SHM = "16G"
MAX_PORTS = 16
NO_EFFECT = ("service_type", "run_as_user", "create_home_dir", "wait_for_submit", "gpu_request_type", "metric")

_COMMON = (
    Option(
        "name_prefix",
        "--name-prefix --job-name-prefix",
        OptionKind.TEXT,
        "Create a name that begins with this text.",
        QUEUE,
    ),
    Option("pull_policy", "--image-pull-policy", OptionKind.TEXT, "Always, IfNotPresent or Never.", PROGRAM, "WHEN"),
    Option("large_shm", "--large-shm", OptionKind.FLAG, f"As --shm-size {LARGE_SHM}.", PROGRAM),
    Option("host_path", "--host-path", OptionKind.REPEATED, "As -v: path=/data,mount=/data,readonly.", PROGRAM, "WHAT"),
    Option("mig_profile", "--mig-profile", OptionKind.TEXT, "Request a MIG instance: 3g.40gb.", GPUS, "PROFILE"),
    Option("gpu_request_type", "--gpu-request-type", OptionKind.TEXT, "No effect: the amount decides.", GPUS),
    Option("service_type", "--service-type -s", OptionKind.TEXT, "No effect: ports are tunnelled.", PROGRAM),
    Option("run_as_user", "--run-as-user", OptionKind.FLAG, "No effect: programs always run as you.", PROGRAM),
    Option("create_home_dir", "--create-home-dir", OptionKind.FLAG, "No effect: programs have your home.", PROGRAM),
    Option("wait_for_submit", "--wait-for-submit", OptionKind.TEXT, "No effect: it is checked at once.", QUEUE),
)
_JOB = (
    *_COMMON,
    Option("port", "--port --external-url", OptionKind.REPEATED, "Show how to open this port: 8888.", PROGRAM, "PORT"),
    Option("jupyter", "--jupyter", OptionKind.FLAG, "Run JupyterLab as the program.", PROGRAM),
)
_SERVICE = (
    *_COMMON,
    Option("least", "--min-replicas", OptionKind.COUNT, "Run at least this number of replicas.", REPLICAS, "N"),
    Option("most", "--max-replicas", OptionKind.COUNT, "Run at most this number of replicas.", REPLICAS, "N"),
    Option("retention", "--scale-to-zero-retention-seconds", OptionKind.COUNT, "As --to-zero.", REPLICAS, "S"),
    Option("metric", "--metric", OptionKind.TEXT, "Only concurrency.", REPLICAS, "NAME"),
)


def _renamed(options: Iterable[Option], flags: Mapping[str, str]) -> tuple[Option, ...]:
    """Return the options with further names, and without those that mean something else in Run:ai."""
    made = []
    for option in options:
        one = copy.copy(option)
        kept = [flag for flag in option.flags if flag not in DROPPED]
        one.flags = tuple(dict.fromkeys([*flags.get(option.name, "").split(), *kept]))
        made.append(one)
    return tuple(made)


JOB = (*_renamed(SUBMIT, FLAGS), *_JOB)
SERVICE = (*_renamed(SERVE, FLAGS | SERVICE_FLAGS), *_SERVICE)


def service_values(values: Values) -> Values:
    """Return the values of the options of ``serve``. Raises ``GpupoolError(INVALID_REQUEST)``."""
    made = job_values(values)
    metric = values.get("metric", "concurrency")
    if metric != "concurrency":
        raise _invalid(f"Services are not scaled by {metric[:40]}.", "Omit --metric, or write --metric concurrency.")
    least, most = made.pop("least", None), made.pop("most", None)
    if least is not None or most is not None:
        least = 1 if least is None else least
        made["replicas"] = str(least) if most in {None, least} else f"{least}..{most}"
    if (seconds := made.pop("retention", None)) is not None:
        made["to_zero"] = f"{seconds}s"
    return made


def ports(values: Values) -> list[int]:
    """Return the ports of ``--port``: ``8888``, ``30022:8888`` or ``container=8888,external=30022``."""
    found = []
    for text in (values.get("port") or [])[:MAX_PORTS]:
        fields = _fields(text)
        number = fields.get("container", text.rpartition(":")[2])
        if not number.isdecimal() or not 0 < int(number[:6]) < 65536:
            raise _invalid(f"'{text[:60]}' after --port is not a port.", "Write, for example, --port 8888.")
        found.append(int(number))
    return found


def job_values(values: Values) -> Values:
    """Return the values of the options of ``submit``. Raises ``GpupoolError(INVALID_REQUEST)``."""
    made = {name: value for name, value in values.items() if name not in NO_EFFECT}
    if prefix := made.pop("name_prefix", None):
        made["name"] = f"{prefix}-{secrets.token_hex(3)}"
    if policy := made.pop("pull_policy", None):
        if policy not in PULL:
            raise _invalid(f"'{policy[:40]}' is not an image pull policy.", f"Write one of {', '.join(PULL)}.")
        made["pull"] = PULL[policy]
    if made.pop("large_shm", None) and made.get("image"):
        made["shm"] = LARGE_SHM
    if paths := made.pop("host_path", None):
        made["volume"] = [*made.get("volume", []), *map(_volume, paths)]
    if profile := made.pop("mig_profile", None):
        made["model"] = [*made.get("model", []), profile]
        made["sharing"] = "mig"
    if "gpu" in made and made.keys() & {"partial", "gpu_memory"} and made["gpu"].isdecimal():
        made["num_gpus"] = int(made.pop("gpu")[:4])  # the number of devices, each with a part
    return made


def _volume(text: str) -> str:
    fields = _fields(text)
    path = fields.get("path", "")
    if not path:
        raise _invalid(f"'{text[:80]}' after --host-path has no path.", "Write path=/data,mount=/data.")
    return f"{path}:{fields.get('mount', path)}{':ro' if 'readonly' in fields else ''}"


def _fields(text: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in text.split(","))


def _invalid(sentence: str, hint: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, hint)
