"""The workloads of the chaos test, with the expected ends: jobs (also lazy, suspended), sweeps, leases, clients."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import GPUPOOL, Api, Pool, RefusedError, live

JOB = Path(__file__).parent / "chaos_job.sh"
GPUS: tuple[dict[str, Any], ...] = (
    {"fraction": 0.1},
    {"fraction": 0.25},
    {"fraction": 0.3},
    {"fraction": 0.5},
    {"count": 1},
    {"count": 2},
    {"count": 2, "fraction": 0.4},
)
LEASE_LIFETIME_S = 600
PATIENCE_S = 120.0  # the mix reports a longer outage


@dataclass(slots=True)
class Planned:
    """One workload of the mix: the end of its program without interference, and the output of its client."""

    name: str
    kind: str  # batch, lazy, held, sweep, lease, run, client
    status: int = 0
    completions: int = 1
    parallelism: int = 1
    restarts: bool = True  # whether it runs again after a loss that the pool caused
    client: subprocess.Popen[bytes] | None = None
    client_killed: bool = False
    client_status: int | None = None
    client_said: str = ""

    @property
    def no_pool_there(self) -> bool:
        """Return whether its client found the supervisor dead; `client` reports that and starts no pool."""
        return self.client_status == 125 and self.kind == "client" and "No pool is running here" in self.client_said

    @property
    def gone(self) -> bool:
        """Return whether no client waits for its end."""
        return self.client_killed or self.left_behind

    @property
    def left_behind(self) -> bool:
        """Return whether another control plane leads now, and the client was informed of that."""
        return self.client_status == 125 and "leads this pool" in self.client_said


class Mix:
    """Keeps about ``target`` workloads alive from several threads until ``stop``; ``planned`` lists the begun ones."""

    def __init__(self, pool: Pool, seed: int, target: int, burners: int = 0) -> None:
        self.pool = pool
        self._burners = burners
        self.marks = pool.folder / "marks"
        self.planned: dict[str, Planned] = {}
        self.errors: list[str] = []
        self._random = random.Random(seed)
        self._target = target
        self._stopping = threading.Event()
        self._side: list[threading.Thread] = []
        self._numbers = 0
        self._main = threading.Thread(target=self._feed, name="mix")

    def start(self) -> None:
        """Begin to submit."""
        self.marks.touch()
        self._main.start()

    def stop(self, timeout_s: float) -> None:
        """Submit nothing more and wait for the clients."""
        self._stopping.set()
        deadline = time.monotonic() + timeout_s
        for thread in (self._main, *self._side):
            thread.join(max(0.1, deadline - time.monotonic()))
            if thread.is_alive():
                self.errors.append(f"{thread.name} has not come back")

    def clients(self) -> list[Planned]:
        """Return the jobs whose client runs now."""
        return [p for p in list(self.planned.values()) if p.client is not None and p.client.poll() is None]

    # -- feeding -----------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        api = self.pool.api()
        while not self._stopping.is_set():
            self._side = [thread for thread in self._side if thread.is_alive()]
            if live(self.pool) + len(self._side) < self._target:
                self._add_one(api)
            time.sleep(self._random.uniform(0.02, 0.15))

    def _add_one(self, api: Api) -> None:
        choice = self._random.choices(("batch", "lazy", "held", "sweep", "lease", "run"), (38, 6, 6, 10, 10, 30))[0]
        if choice == "batch":
            self._batch(api)
        elif choice == "lazy":
            self._lazy(api)
        elif choice == "held":
            self._held(api)
        elif choice == "sweep":
            self._sweep(api)
        else:
            self._aside(self._lease if choice == "lease" else self._run, self._random.getrandbits(32))

    def _aside(self, work: Callable[[random.Random], None], seed: int) -> None:
        def guarded() -> None:
            try:
                work(random.Random(seed))
            except Exception as error:  # noqa: BLE001 - any error is a finding
                self.errors.append(f"{work.__name__}: {error!r}")

        thread = threading.Thread(target=guarded, name=f"{work.__name__} {seed}")
        self._side.append(thread)
        thread.start()

    def _plan(self, kind: str, **more: Any) -> Planned:
        self._numbers += 1
        planned = Planned(f"{kind}-{self._numbers}", kind, **more)
        self.planned[planned.name] = planned
        return planned

    def _command(self, chance: random.Random, status: int, uses: int = 0) -> list[str]:
        seconds = f"{chance.expovariate(1.0):.2f}" if chance.random() < 0.8 else "0"
        orphan = str(int(chance.random() < 0.2))
        return ["/bin/sh", str(JOB), str(self.marks), seconds, str(status), orphan, str(self._burners), str(uses)]

    def _batch(self, api: Api) -> None:
        fails = self._random.random() < 0.15
        restarts = not fails and self._random.random() < 0.8
        planned = self._plan("batch", status=3 if fails else 0, restarts=restarts)
        body = self._body(planned, self._random) | {"gpus": self._random.choice(GPUS)}
        submit(api, body if restarts else body | {"restart": "never"})

    def _lazy(self, api: Api) -> None:
        """Submit a job that uses CUDA up to three times, and returns its GPUs between two uses."""
        planned = self._plan("lazy")
        body = self._body(planned, self._random, uses=self._random.randint(0, 3))
        body |= {"gpus": self._random.choice(GPUS[:5]), "kind": "training", "lazy": True, "return_after": "1s"}
        submit(api, body)

    def _held(self, api: Api) -> None:
        """Submit a job that is suspended between its uses of CUDA, and checks what it has in GPU memory."""
        planned = self._plan("held")
        body = self._body(planned, self._random, uses=self._random.randint(1, 3))
        body["env"]["CHAOS_HOLDS"] = "1"
        body |= {"gpus": self._random.choice(GPUS[:5]), "kind": "training", "lazy": True, "return_after": "1s"}
        submit(api, body | {"on_preempt": "suspend"})

    def _sweep(self, api: Api) -> None:
        planned = self._plan("sweep", completions=self._random.randint(3, 7), parallelism=self._random.randint(1, 3))
        rows = [{"number": i} for i in range(planned.completions)]
        body = self._body(planned, self._random) | {"sweep": {"list": rows}, "parallelism": planned.parallelism}
        submit(api, body | {"gpus": {"fraction": 0.2}})

    def _body(self, planned: Planned, chance: random.Random, uses: int = 0) -> dict[str, Any]:
        command = self._command(chance, planned.status, uses)
        env = {"PATH": os.defpath, "CHAOS_POOL": str(self.pool.folder), "CHAOS_NAME": planned.name}
        env["CHAOS_PYTHON"] = sys.executable
        return {"name": planned.name, "command": command, "workdir": "/", "env": env, "request_id": unique(chance)}

    # -- parallel to the feeding: clients that wait -------------------------------------------------------------------

    def _lease(self, chance: random.Random) -> None:
        planned = self._plan("lease")
        api = self.pool.api()
        body = {"kind": "lease", "name": planned.name, "gpus": chance.choice(GPUS[:5]), "lifetime": LEASE_LIFETIME_S}
        body["request_id"] = unique(chance)
        workload = submit(api, body)["id"]
        if not wait_for(api, workload, "started", "running"):
            self.errors.append(f"{planned.name} was not granted")
        for _ in range(chance.randint(1, 3)):
            command = self._plan("client", restarts=False, status=chance.choice((0, 0, 5)))
            self._attached(command, ("client", "--lease", workload, "-q"), chance)
        insist(api, "POST", f"/v1/workloads/{workload}/stop", {})

    def _run(self, chance: random.Random) -> None:
        planned = self._plan("run", restarts=False, status=chance.choice((0, 0, 7)))
        gpus = chance.choice((("-p", "0.1"), ("-p", "0.25"), ("-p", "0.5"), ("-n", "1"), ("-n", "2", "-p", "0.3")))
        self._attached(planned, ("run", "-q", "--name", planned.name, *gpus), chance)

    def _attached(self, planned: Planned, options: tuple[str, ...], chance: random.Random) -> None:
        planned.client = subprocess.Popen(
            (GPUPOOL, *options, "--", *self._command(chance, planned.status)),
            env={
                **self.pool.client_env(),
                "CHAOS_NAME": planned.name,
            },  # not --env: the native program sends the request
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
        )
        said, _ = planned.client.communicate()
        planned.client_said = said.decode("utf-8", "replace")[-500:]
        planned.client_status = planned.client.returncode


def unique(chance: random.Random) -> str:
    """Return an identifier that makes a repeated request harmless."""
    return f"{chance.getrandbits(128):032x}"


def submit(api: Api, body: dict[str, Any]) -> Any:
    """Submit a request until it is answered and return its workload: the ``request_id`` makes repetitions harmless."""
    return insist(api, "POST", "/v1/workloads", body)


def insist(api: Api, method: str, target: str, body: object = None) -> Any:
    """Return the answer; retry while the control plane is unavailable."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return api.ask(method, target, body)
        except (OSError, RefusedError) as error:
            if (isinstance(error, RefusedError) and error.status != 503) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def wait_for(api: Api, workload: str, condition: str, state: str) -> bool:
    """Return whether a workload reaches a state."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        seen = insist(api, "GET", f"/v1/workloads/{workload}/wait?for={condition}&timeout_s=5")
        if seen["state"] == state:
            return True
    return False
