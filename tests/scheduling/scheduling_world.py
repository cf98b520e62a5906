"""A small world written in words: the scheduler decides, and nodes and victims obey.

nodes     "a 4xT4 cpus=8 mem=32000 rack=x cordoned|down failed=0 foreign=1 nvlink mig=3g.40gb offers=share policy=mps"
          other words are labels; mig: instances, with indices from 100
projects  "red quota=2 limit=3 user=1 strict weight=2 dep=ml min=600 quota.a100=1"
          in GPUs; strict: training may not exceed the quota; min: the min-runtime before eviction, weights=ann:2,bob:1,
          quotas=ann:3 (of users)
departments "ml quota=4 limit=6 weight=2"
users     "ann limit=1"
bookings  "m1 on=a,b from=100 for=3600 lead=600 projects=red users=ann"   (seconds from now; for nobody: maintenance)
past      "red/ann 2 for=3600 ago=60"   (GPUs held by leases that have ended)
running   "r1 red/ann 1 on a:0 train prio=5 age=100 end=500 releasing min=600 pool=x grace=30 evictions=2"
          on node:gpus, the whole request on each; indices of two digits have commas: a:100,101
pending   "p1 red/ann 2x0.5 train prio=1 cpus=2 mem=100 model=t4 zone=x max=60 wait=900 later=50 pool=x,y sharing=mps"
          also placement=spread

A GPU request is "1", "4", "0.5", "2x0.5", "8000M" (memory of one GPU) or "0" (CPU and memory only). Work is protected
unless it says "train".
A waiting gang says "gang=2" (two replicas, both or none) or "gang=2-4", and "within=rack", strictly "within=rack!",
and "models=mixed" if its members may use GPUs of different models.
Members with different requests: "0+1+1" in the place of the request, one for each.
A running gang has a line for each member: "r1.0 red 1 on a:0 gang=2", "r1.1 red 1 on b:0 gang=2".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal

from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import (
    ForeignProcess,
    Gpu,
    GpuHealth,
    GpuRequest,
    GpuShare,
    Node,
    NodeReport,
    NodeState,
    Placement,
)
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.nodes.sharing import Sharing
from gpupool.domain.people.access import Department, Project, ProjectRules, User
from gpupool.domain.work.gang import Gang
from gpupool.domain.work.workload import GpuLease
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.scheduler import (
    DepartmentChanged,
    LeaseReleased,
    LeaseTaken,
    NodeChanged,
    PastUse,
    PendingAdded,
    ProjectChanged,
    ReservationChanged,
    Scheduler,
    UserChanged,
)
from gpupool.scheduling.state.decayed_usage import Decay
from gpupool.scheduling.values import BlockReason, Decisions, PendingReplica, ReplicaKey, RunningReplica

NOW = 100_000.0
NODE_WORDS = {"cpus", "mem", "failed", "foreign", "mig", "offers", "policy"}
MEMORY_MIB = {"T4": 16_000, "A100": 80_000, "L4": 24_000, "H100": 80_000}


def permille(text: str) -> int:
    return int(Decimal(text) * 1000)


def words(line: str) -> tuple[list[str], dict[str, str]]:
    parts = line.split()
    return [p for p in parts if "=" not in p], dict(p.split("=", 1) for p in parts if "=" in p)


def request(text: str, options: dict[str, str]) -> GpuRequest:
    placement = Placement(options["placement"]) if "placement" in options else None
    return replace(_request(text, options), placement=placement, gpu_uuid=options.get("gpu", ""))


def _request(text: str, options: dict[str, str]) -> GpuRequest:
    models = tuple(options["model"].split(",")) if "model" in options else ()
    labels = tuple((name, options[name]) for name in ("zone", "rack") if name in options)
    sharing = Sharing(options["sharing"]) if "sharing" in options else None
    if text.endswith("M"):
        return GpuRequest(1, 1000, int(text[:-1]), models, labels, sharing)
    if "x" in text:
        count, part = text.split("x")
        return GpuRequest(int(count), permille(part), None, models, labels, sharing)
    if "." in text:
        return GpuRequest(1, permille(text), None, models, labels, sharing)
    return GpuRequest(int(text), 1000, None, models, labels, sharing)


def gang(options: dict[str, str]) -> Gang | None:
    if "gang" not in options:
        return None
    least, _, most = options["gang"].partition("-")
    within = options.get("within", "")
    mixed = options.get("models") == "mixed"
    return Gang(int(least), int(most or least), within.removesuffix("!"), within.endswith("!"), mixed_models=mixed)


def pools(options: dict[str, str]) -> tuple[str, ...]:
    return tuple(options["pool"].split(",")) if "pool" in options else ()


def nvlink_pairs(count: int, index: int) -> dict[int, str]:
    """Join GPUs 0-1, 2-3, ... by NVLink; all others are connected by PCIe."""
    return {other: "NV4" if other // 2 == index // 2 else "PHB" for other in range(count) if other != index}


def node(line: str) -> Node:
    plain, options = words(line)
    name = plain[0]
    gpus: list[Gpu] = []
    for batch in (word for word in plain[1:] if "x" in word):
        count, model = batch.split("x")
        first = len(gpus)
        gpus.extend(Gpu(f"{name}-{i}", i, model, MEMORY_MIB[model]) for i in range(first, first + int(count)))
    if "nvlink" in plain:
        gpus = [replace(gpu, links=nvlink_pairs(len(gpus), gpu.index)) for gpu in gpus]
    for index in options.get("failed", ""):
        gpus[int(index)] = replace(gpus[int(index)], health=GpuHealth.FAILED)
    for index in options.get("foreign", ""):
        gpus[int(index)] = replace(gpus[int(index)], foreign=(ForeignProcess(1, "root", "x", 5),))
    for number, profile in enumerate(options["mig"].split(",") if "mig" in options else ()):
        model, mib = f"A100 MIG {profile}", int(profile.split(".")[1].removesuffix("gb")) * 1000
        gpus.append(
            Gpu(f"{name}-mig{number}", 100 + number, model, mib, mig_profile=profile, parent_uuid=f"{name}-card")
        )
    labels = {word: value for word, value in options.items() if word not in NODE_WORDS}
    report = NodeReport(
        name,
        float(options.get("cpus", 64)),
        int(options.get("mem", 256_000)),
        tuple(gpus),
        emulated=True,
        boot_id="boot",
        agent_version="0",
        labels=labels,
        sharing=tuple(options["offers"].split(",")) if "offers" in options else (),
    )
    policy = {"": Sharing(options["policy"])} if "policy" in options else {}
    state = NodeState.CORDONED if "cordoned" in plain else NodeState.DOWN if "down" in plain else NodeState.UP
    return Node(report, state, sharing=policy)


def project(line: str) -> Project:
    plain, options = words(line)
    bounds = {name: permille(options[name]) if name in options else None for name in ("quota", "limit", "user")}
    models = tuple((name[6:], permille(value)) for name, value in options.items() if name.startswith("quota."))
    weights = dict(pair.split(":") for pair in options.get("weights", "").split(",") if pair)
    quotas = dict(pair.split(":") for pair in options.get("quotas", "").split(",") if pair)
    return Project(
        plain[0],
        bounds["quota"],
        "strict" not in plain,
        bounds["limit"],
        bounds["user"],
        department=options.get("dep", ""),
        weight=float(options.get("weight", 1)),
        model_quotas=models,
        rules=ProjectRules(
            min_runtime_s=float(options["min"]) if "min" in options else None,
            user_weights=tuple((name, float(weight)) for name, weight in weights.items()),
            user_quotas=tuple((name, permille(gpus)) for name, gpus in quotas.items()),
        ),
    )


def department(line: str) -> Department:
    plain, options = words(line)
    quota, limit = (permille(options[name]) if name in options else None for name in ("quota", "limit"))
    return Department(plain[0], quota, float(options.get("weight", 1)), limit)


def reservation(line: str) -> Reservation:
    plain, options = words(line)
    start = NOW + float(options["from"])
    nodes, projects, users = (
        tuple(options[name].split(",")) if name in options else () for name in ("on", "projects", "users")
    )
    lead = float(options.get("lead", 43_200))
    return Reservation(plain[0], plain[0], nodes, start, start + float(options["for"]), projects, users, lead)


def past_use(line: str) -> PastUse:
    plain, options = words(line)
    name, person = owner(plain[0])
    end = NOW - float(options.get("ago", 0))
    return PastUse(name, person, Decay().lease_use(permille(plain[1]), end - float(options["for"]), end, NOW), NOW)


def user(line: str) -> User:
    plain, options = words(line)
    return User(plain[0], gpu_limit_permille=permille(options["limit"]) if "limit" in options else None)


def owner(text: str) -> tuple[str, str]:
    name, _, person = text.partition("/")
    return name, person or "ann"


def pending(line: str, number: int = 0) -> PendingReplica:
    plain, options = words(line)
    name, person = owner(plain[1])
    held = next((h for h in BlockReason if h.value in plain), None)
    return PendingReplica(
        workload=WorkloadId(plain[0]),
        index=0,
        project=name,
        user=person,
        request=request(plain[2], options),
        queued_at=NOW - float(options.get("wait", 10)) + number / 1000,
        priority=int(options.get("prio", 0)),
        preemptible="train" in plain,
        cpus=float(options.get("cpus", 0)),
        memory_mib=int(options.get("mem", 0)),
        not_before=NOW + float(options["later"]) if "later" in options else 0.0,
        max_time_s=float(options["max"]) if "max" in options else None,
        grace_s=float(options.get("grace", 0)),
        checkpoint_s=None if "unsaved" in plain else 0.0,
        held=held,
        gang=gang(options),
        node_pools=pools(options),
    )


def pendings(line: str, number: int = 0) -> list[PendingReplica]:
    """Return all replicas of a workload: the maximum size of its gang, else one."""
    plain, _ = words(line)
    if "+" in plain[2]:
        wanted = plain[2].split("+")
        parts = [pending(line.replace(plain[2], part, 1), number) for part in wanted]
        mixed = replace(parts[0].gang or Gang(len(wanted), len(wanted)), mixed=True)
        return [replace(part, index=index, gang=mixed) for index, part in enumerate(parts)]
    first = pending(line, number)
    return [replace(first, index=index) for index in range(first.gang.most if first.gang else 1)]


def running(line: str, nodes: dict[str, Node]) -> RunningReplica:
    plain, options = words(line)
    name, person = owner(plain[1])
    workload, _, index = plain[0].partition(".")
    where, _, indices = plain[plain.index("on") + 1].partition(":")
    slots = [int(i) for i in (indices.split(",") if "," in indices else indices) if i]
    wanted = request(plain[2], options)
    gpus = {gpu.index: gpu for gpu in nodes[where].report.gpus} if where in nodes else {}
    shares = tuple(
        GpuShare(
            gpus[i].uuid if i in gpus else f"gone-{i}",
            i,
            wanted.permille_on(gpus[i].memory_mib if i in gpus else 1),
            wanted.memory_on(gpus[i].memory_mib if i in gpus else 1),
        )
        for i in slots
    )
    began = NOW - float(options.get("age", 1000))
    cpus, memory = float(options.get("cpus", 0)), int(options.get("mem", 0))
    mode = options.get("sharing", "")
    lease = GpuLease(
        epoch=Epoch(1),
        workload=WorkloadId(workload),
        index=int(index or 0),
        attempt=1,
        project=name,
        user=person,
        node=where,
        shares=shares,
        cpus=cpus,
        memory_mib=memory,
        granted_at=began,
        sharing=mode,
    )
    return RunningReplica(
        lease,
        began,
        int(options.get("prio", 0)),
        "train" in plain,
        NOW + float(options["end"]) if "end" in options else None,
        "releasing" in plain,
        gang(options),
        float(options["min"]) if "min" in options else None,
        wanted,
        pools(options),
        grace_s=float(options.get("grace", 0)),
        evictions=int(options.get("evictions", 0)),
        checkpoint_s=None if "unsaved" in plain else 0.0,
        saved_at=NOW - float(options["saved"]) if "saved" in options else None,
    )


def as_pending(ended: RunningReplica, now: float = NOW) -> PendingReplica:
    lease = ended.lease
    wanted = ended.request or GpuRequest(len(lease.shares), lease.shares[0].permille)
    return PendingReplica(
        workload=lease.workload,
        index=lease.index,
        project=lease.project,
        user=lease.user,
        request=wanted,
        queued_at=now,
        priority=ended.priority,
        preemptible=ended.preemptible,
        cpus=lease.cpus,
        memory_mib=lease.memory_mib,
        gang=ended.gang,
        node_pools=ended.node_pools,
        grace_s=ended.grace_s,
        evictions=ended.evictions,
        checkpoint_s=ended.checkpoint_s,
    )


def lines(text: str | Iterable[str]) -> list[str]:
    parts = text.splitlines() if isinstance(text, str) else text
    return [part.strip() for part in ";".join(parts).split(";") if part.strip()]


@dataclass
class World:
    """The scheduler, and around it a pool that carries out its decisions."""

    scheduler: Scheduler
    waiting: dict[ReplicaKey, PendingReplica]
    running: dict[ReplicaKey, RunningReplica] = field(default_factory=dict)
    now: float = NOW
    evicted: list[str] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)
    last: Decisions = field(default_factory=Decisions)
    slow: int = 0  # rounds that victims take to end
    told: dict[ReplicaKey, int] = field(default_factory=dict)

    def step(self) -> bool:
        """Run one cycle, then end all victims and releasing replicas; return whether anything changed."""
        leaving = [key for key, r in self.scheduler.demand.running.items() if r.releasing]
        self.last = decisions = self.scheduler.decide(self.now)
        for grant in decisions.grants:
            self.granted.append(str(grant.workload))
            self.running[grant.key] = self.scheduler.demand.running[grant.key]
        for eviction in decisions.evictions:
            self.evicted.append(str(eviction.workload))
        self.told.update((eviction.key, self.slow) for eviction in decisions.evictions)
        for key in leaving + [eviction.key for eviction in decisions.evictions]:
            if self.told.get(key, 0) <= 0:
                self.leave(key)
            else:
                self.told[key] -= 1
        return bool(decisions.grants or decisions.evictions or leaving)

    def leave(self, key: ReplicaKey) -> None:
        """End a replica; queue it again if it was evicted."""
        ended = self.scheduler.demand.running[key]
        self.running.pop(key, None)
        self.scheduler.apply(LeaseReleased(key))
        if key[0] in self.evicted:
            again = self.waiting.get(key) or as_pending(ended, self.now)
            self.waiting[key] = replace(again, queued_at=self.now, evictions=again.evictions + 1)
            self.scheduler.apply(PendingAdded(self.waiting[key], self.now))

    def settle(self, limit: int = 30, *, watch: bool = True) -> None:
        """Run until a round changes nothing, then five more rounds, in which only times may change."""
        for _ in range(limit):
            if not self.step():
                break
            self.now += 1
        else:
            raise AssertionError(f"never at rest: granted {self.granted}, evicted {self.evicted}")
        if not watch:
            self.now += 5
            return
        before = self.places()
        for _ in range(5):
            self.now += 1
            assert not self.step(), f"moved after coming to rest: {self.last}"
        assert self.places() == before

    def places(self) -> str:
        """Return the places of running replicas: ``p1@a``, ordered by name."""
        found = sorted((str(key[0]), r.lease.node) for key, r in self.scheduler.demand.running.items())
        return " ".join(f"{name}@{where}" for name, where in found)

    def slots(self, name: str) -> list[int]:
        """Return the GPU indices that a running workload holds."""
        lease = self.scheduler.demand.running[WorkloadId(name), 0].lease
        return [share.gpu_index for share in lease.shares]

    def permille(self, name: str) -> int:
        """Return the GPU thousandths that a running workload holds."""
        return self.scheduler.demand.running[WorkloadId(name), 0].lease.permille


def world(  # noqa: PLR0913 - the parts of a world
    nodes: str,
    pending_: str = "",
    running_: str = "",
    projects: str = "",
    users: str = "",
    *,
    departments: str = "",
    reservations: str = "",
    past: str = "",
    **settings: float,
) -> World:
    """Build a world from words; see the module."""
    scheduler = Scheduler(Settings(**settings))  # type: ignore[arg-type]
    made = {n.name: n for n in map(node, lines(nodes))}
    scheduler.apply_all(NodeChanged(n) for n in made.values())
    scheduler.apply_all(DepartmentChanged(department(line)) for line in lines(departments))
    scheduler.apply_all(ReservationChanged(reservation(line)) for line in lines(reservations))
    scheduler.apply_all(ProjectChanged(project(line)) for line in lines(projects))
    scheduler.apply_all(UserChanged(user(line)) for line in lines(users))
    scheduler.apply_all(past_use(line) for line in lines(past))
    active = [running(line, made) for line in lines(running_)]
    scheduler.apply_all(LeaseTaken(r) for r in active)
    waiting = [replica for number, line in enumerate(lines(pending_)) for replica in pendings(line, number)]
    scheduler.apply_all(PendingAdded(p, NOW) for p in waiting)
    return World(scheduler, {p.key: p for p in waiting}, {r.key: r for r in active})
