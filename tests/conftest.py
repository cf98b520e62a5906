"""Setup for all tests: default signal handlers, and exclusive use of the machine for tests that measure it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from requires import require
from shared_pools import SharedPools

# The same cases in each run: what passes here passes there. `pytest --hypothesis-profile=search` draws new ones.
# Without a deadline: a busy machine is no fault of the code.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile("same")


def constants_of_no_module(
    no_constants: providers.Constants = providers.Constants(),  # noqa: B008 - one object for all calls
    constants_of_modules: Callable[[], providers.Constants] = providers._get_local_constants,
) -> providers.Constants:
    """Return the constants that hypothesis prefers when it draws values.

    Usually these are the constants in all loaded modules of a project. Cases would then depend on the tests that the
    same process ran before, and hypothesis has no setting against it.
    """
    return no_constants if settings.default is not None and settings.default.derandomize else constants_of_modules()


providers._get_local_constants = constants_of_no_module

# A shell starts what it puts into the background with these ignored, and so would everything be that tests start.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)

# Threads of numeric libraries that wait for each other in a loop take most of a busy machine's time.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Which pool the person who runs the tests uses must not matter: tests start their own.
for variable in ("URL", "TOKEN", "CA", "POOL", "PROJECT", "STATE_DIR", "RUN_DIR", "DEBUG"):
    os.environ.pop(f"GPUPOOL_{variable}", None)

# The files that take longest, longest first. They start first: one that started last would keep one process busy while
# the others have nothing left to do.
LONGEST = (
    "ray/test_removed_machines.py",
    "ray/test_leader_cut_off.py",
    "e2e/test_e2e_bench.py",
    "api/test_schemathesis.py",
    "distributed/test_bench_cluster.py",
    "distributed/test_bench_scaling.py",
    "e2e/test_e2e_services.py",
    "e2e/test_e2e_service_requests.py",
    "ray/test_service_gateways.py",
    "ray/test_second_head.py",
    "machines/test_split_brain.py",
    "daemon/test_slow_start.py",
    "database/test_head_readiness.py",
    "distributed/test_verify_network.py",
    "client/test_heads.py",
    "web/test_work_browser.py",
    "jupyter/test_remote_kernels.py",
    "web/test_services_browser.py",
    "chaos/test_chaos.py",
    "e2e/test_e2e_endings.py",
    "benchmarks/test_gpu_pack.py",
    "machines/test_fault_matrix.py",
    "native/test_agent_share.py",
    "native/test_shares.py",
    "ray/test_slow_agents.py",
    "web/test_frame_browser.py",
    "ssh/test_ssh_activity.py",
    "containers/test_workspace_layers.py",
    "jupyter/test_kernel_adoption.py",
    "jupyter/test_class.py",
    "docs/test_readme.py",
    "ray/test_ray_cluster.py",
    "jupyter/test_lab_browser.py",
    "web/test_admin_browser.py",
    "e2e/test_e2e_verify.py",
    "e2e/test_e2e_workspace_environments.py",
    "jupyter/test_spawner.py",
    "machines/test_lost_machines.py",
    "cli/test_light_commands.py",
    "containers/test_example_images.py",
    "e2e/test_e2e_workspace_archives.py",
    "e2e/test_e2e_restarts.py",
    "gateway/test_replicas.py",
    "node/test_lifecycle.py",
    "containers/test_container_kernels.py",
    "benchmarks/test_benchmarks_start.py",
    "e2e/test_e2e_leases.py",
    "e2e/test_e2e_queue.py",
    "e2e/test_e2e_priority.py",
    "native/test_verify.py",
    "e2e/test_e2e_notice.py",
    "distributed/test_frameworks.py",
    "ssh/test_ssh_far.py",
    "examples/test_train_digits.py",
    "remote/test_head_files.py",
    "e2e/test_e2e_warnings.py",
    "ssh/test_ssh_sessions.py",
    "distributed/test_gang_policies.py",
    "database/test_two_control_planes.py",
    "native/test_gate.py",
    "jupyter/test_kernels.py",
    "jupyter/test_server_messages.py",
    "jupyter/test_notebook.py",
    "ray/test_ssh_to_nodes.py",
    "containers/test_container_programs.py",
    "e2e/test_e2e_workspaces.py",
    "jupyter/test_open_gateway.py",
    "gateway/test_hostile_clients.py",
    "native/test_proxy_load.py",
    "gateway/test_control_plane.py",
    "native/test_time_check.py",
    "jupyter/test_kernel_users.py",
    "node/test_runner_conformance.py",
    "e2e/test_e2e_telemetry.py",
    "ssh/test_ssh_linger.py",
    "services/test_service_histories.py",
    "machines/test_machines.py",
)

_LOCKS = "alone_locks"
_FOLDER = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def shared_pools() -> Iterator[SharedPools]:
    """Yield the pools that modules share, and close them at the end of the session."""
    made = SharedPools()
    with contextlib.closing(made):
        yield made


@pytest.fixture(scope="module", autouse=True)
def _idle_pools(shared_pools: SharedPools) -> Iterator[None]:
    """Close, after each module, shared pools that no module has used for a while."""
    yield
    shared_pools.close_idle()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Create one folder for the locks of all worker processes, in the process that distributes the tests."""
    if _FOLDER not in node.config.stash:
        folder = tempfile.TemporaryDirectory(prefix="gpupool-tests-")
        node.config.add_cleanup(folder.cleanup)
        node.config.stash[_FOLDER] = folder.name
    node.workerinput[_LOCKS] = node.config.stash[_FOLDER]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files of a run in several processes: the longest, all others, those with tests marked ``alone``.

    All others are in order of their folders, as the files of a folder share pools; folders without long files are last.
    A test marked ``alone`` waits for the tests that run, and new ones wait for it: at the end no long test runs.
    """
    if not hasattr(config, "workerinput"):
        return
    measuring = {item.path for item in items if item.get_closest_marker("alone")}
    tests = Counter(item.path for item in items)
    longest = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    folders = {path.parent: number for path, number in reversed(longest.items())}

    def rank(item: pytest.Item) -> tuple[bool, int, int, str, int, str]:
        path, last = item.path, len(longest)
        folder = (folders.get(path.parent, last), str(path.parent))
        return path in measuring, longest.get(path, last), *folder, -tests[path], str(path)

    items.sort(key=rank)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``needs`` if one of its requirements is missing, before its fixtures are created."""
    require(*dict.fromkeys(name for mark in item.iter_markers("needs") for name in mark.args))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run no other test during one that is marked ``alone``; the wait does not count as its time."""
    worker: dict[str, Any] = getattr(item.config, "workerinput", {})
    if _LOCKS not in worker:
        return (yield)
    with _turn(Path(worker[_LOCKS]), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the newest log lines of each pool that a failed test used."""
    report = yield
    if report.failed:
        for name, fixture in getattr(item, "funcargs", {}).items():
            if callable(newest := getattr(fixture, "newest_log_lines", None)):
                report.sections.append((f"log of {name}", newest()))
    return report


@contextlib.contextmanager
def _turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Lock the machine, shared or exclusively; a waiting exclusive test delays the start of new tests."""
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
