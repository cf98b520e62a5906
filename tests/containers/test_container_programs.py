"""Programs in containers on a real node: user, visible files, end, and cleanup."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from container_images import PODMAN, containers, import_image, make_musl_tree, podman
from node_harness import PIPES, TTY, Node, RefusedError, eventually, fresh_node, spec

from gpupool.domain.decode import decode
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.protocol import frames
from gpupool.domain.work.program.container import ContainerNetwork, ContainerSpec, PullPolicy, Volume, VolumeKind
from gpupool.domain.work.program.supervision import ExitReason, ProcessSpec
from gpupool.node.host import process_tree
from gpupool.node.inventory.emulated import emulated_uuid
from gpupool.node.runners.container import cleanup, execution
from gpupool.node.runners.container.engine import ContainerEngine

UID, OTHER = 54_321, 54_322
T4_MIB = 16384


def boxed(*argv: str, env: dict[str, str] | None = None, uid: int = UID, **changes: Any) -> ProcessSpec:
    """Return the spec of a program in the tiny image; changes with names of container fields apply to the container."""
    fields = {name: changes.pop(name) for name in list(changes) if name in ContainerSpec.__dataclass_fields__}
    container = ContainerSpec(**{"image": "tiny:1", **fields})
    if len(argv) == 1 and " " in argv[0]:
        argv = ("sh", "-c", argv[0])
    made = spec("x", container=container, uid=uid, cwd=changes.pop("cwd", ""), env=env or {}, **changes)
    return decode(ProcessSpec, {**made.to_dict(), "argv": argv})


def told(node: Node, wanted: ProcessSpec) -> str:
    """Return the output of a program that must succeed."""
    report = node.run_to_end(wanted)
    assert (report.reason, report.exit_code) == (ExitReason.EXITED, 0), (report, node.log(wanted.key))
    return node.log(wanted.key).decode()


def inside_of(node: Node, key: str) -> dict[int, int]:
    """Return the processes of a program in its container, once they exist."""
    return eventually(lambda: _program_of(node.shepherd(key)), f"{key} is in its container")


def _program_of(shepherd: int) -> dict[int, int]:
    found = execution.processes(shepherd)
    return found if any(number != 1 for number in found.values()) else {}


def engine_pid(node: Node, key: str, name: bytes) -> int:
    """Return a process of the engine below a shepherd."""
    table = process_tree.scan()
    below = process_tree.descendants([node.shepherd(key)], process_tree.children_of(table))
    return next(pid for pid in below if Path(f"/proc/{pid}/comm").read_bytes().strip() == name)


# -- who and what ----------------------------------------------------------------------------------------------------


def test_container_runs_as_its_user_without_capabilities_with_private_variables(node: Node) -> None:
    wanted = boxed("id; grep -E 'CapEff|NoNewPrivs' /proc/self/status; echo $WORD; sleep 60", env={"WORD": "s3cret"})
    node.start(wanted)
    lines = eventually(lambda: _lines(node, wanted, 4), "it says who it is")
    assert lines[0].startswith(f"uid={UID}(")
    assert lines[1].split()[-1] == "0" * 16
    assert lines[2].split()[-1] == "1"
    assert lines[3] == "s3cret"
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert not any(b"s3cret" in command for command in commands)
    node.ask("stop", key=wanted.key, grace_s=0)
    node.ended(wanted.key)


def _lines(node: Node, wanted: ProcessSpec, count: int) -> list[str]:
    lines = node.log(wanted.key).decode().splitlines()
    return lines if len(lines) >= count else []


def test_image_command_runs_unless_request_has_one(node: Node) -> None:
    assert told(node, boxed()) == "hello \n"
    assert told(node, boxed("you", entrypoint=("/bin/greet", "dear"))) == "hello dear you\n"
    assert told(node, boxed("pwd; umask", cwd="/work", umask=0o027)) == "/work\n0027\n"


def test_exit_status_is_that_of_the_program(node: Node) -> None:
    assert node.run_to_end(boxed("exit 7 ; true")).exit_code == 7
    assert node.run_to_end(boxed("kill -9 $$ ; true")).status == 137


def test_terminal_and_pipes_reach_the_program(node: Node) -> None:
    terminal = boxed("stty size; read x; echo got $x; exit 5", stdio=TTY, client_bound=True)
    client = node.start_attached(terminal, rows=31, columns=97)
    client.until(lambda: b"31 97" in client.out)
    client.send(frames.STDIN, b"this\n")
    assert client.finish()["exit_code"] == 5
    assert b"got this" in client.out
    client = node.start_attached(boxed("cat; echo sad >&2", stdio=PIPES, client_bound=True))
    client.send(frames.STDIN, b"all of it")
    client.send(frames.STDIN_EOF)
    assert client.finish()["exit_code"] == 0
    assert (bytes(client.out), bytes(client.err)) == (b"all of it", b"sad\n")


def test_container_without_network_has_only_loopback(node: Node) -> None:
    devices = told(node, boxed("cat", "/proc/net/dev", network=ContainerNetwork.NONE, read_only=True))
    assert [line.split(":")[0].strip() for line in devices.splitlines()[2:]] == ["lo"]


@pytest.mark.parametrize(
    ("image", "changes"), [("localhost/nowhere:3", {}), ("nowhere/nothing", {"pull": PullPolicy.NEVER})]
)
def test_missing_image_is_named_in_the_report(node: Node, image: str, changes: dict[str, Any]) -> None:
    wanted = boxed("true", image=image, **changes)
    report = node.run_to_end(wanted)
    assert (report.reason, report.exit_code) == (ExitReason.IMAGE_FAILED, 125)
    assert report.message.startswith("Could not start: Error: ")
    assert image in report.message
    assert image.encode() in node.log(wanted.key)


def test_program_may_end_with_the_exit_code_of_the_engine(node: Node) -> None:
    report = node.run_to_end(boxed("exit 125 ; true"))
    assert (report.reason, report.exit_code) == (ExitReason.EXITED, 125)


@pytest.mark.parametrize("name", ["dir:/etc", "docker-archive:/etc/shadow", "--privileged", "a b"])
def test_invalid_image_name_is_not_passed_to_the_engine(node: Node, name: str) -> None:
    with pytest.raises(RefusedError) as refused:
        node.start(boxed("true", image=name))
    assert refused.value.code == "INVALID_NAME"


def test_unsupported_variable_is_refused_by_name(node: Node) -> None:
    report = node.run_to_end(boxed("true", env={"KEY": "two\nlines"}))
    assert report.reason is ExitReason.START_FAILED
    assert "KEY" in report.message


# -- repositories ----------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(node: Node) -> Path:
    """Return a repository of the user that has a branch."""
    folder = node.root / "model.git"
    if not folder.exists():
        script = (
            "git init -q -b main && git config user.email a@b && git config user.name a && echo two > version && "
            "git add . && git commit -qm two && git branch other && git checkout -q other && echo other > version && "
            "git commit -qam other && git checkout -q main"
        )
        folder.mkdir()
        own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        subprocess.run(["sh", "-c", script], cwd=folder, env=os.environ | own, check=True)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, UID, UID)
    return folder


def test_repository_is_cloned_on_the_node_and_mounted(node: Node, repository: Path) -> None:
    source = f"file://{repository}"
    script = "pwd; cat model/version; id -u; touch model/made; ls -A; env | grep -c SECRET; true"
    env = {"GITSYNC_PASSWORD": "SECRET"}
    assert told(node, boxed(script, git=source, env=env)).split() == ["/workspace", "two", str(UID), "model", "0"]
    assert (
        told(node, boxed("cat src/version", git=f"repository={source},rev=other,path=src", cwd="/opt/x")) == "other\n"
    )
    assert not list((node.state.path.parent / "work").glob(".*.git"))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("file:///nowhere/model.git", "not appear to be a git"),
        ("repository={},rev=none", "no branch, tag or commit none"),
    ],
)
def test_repository_that_fails_is_named_with_the_reason(node: Node, repository: Path, source: str, why: str) -> None:
    source = source.format(f"file://{repository}")
    report = node.run_to_end(boxed("echo started", git=source))
    assert (report.reason, report.exit_code) == (ExitReason.START_FAILED, 128)
    assert "model.git was not cloned into model: " in report.message
    assert why in report.message


# -- volumes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(container_store: Path) -> Path:
    """Yield a folder of the user, and a folder of another user."""
    folder = container_store / "data"
    for name, owner, mode in (("own", UID, 0o755), ("others", OTHER, 0o700)):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "inner").mkdir(exist_ok=True)
        os.chown(place, owner, owner)
        place.chmod(mode)
    return folder


def test_volumes_are_accessed_with_rights_of_the_user(node: Node, data: Path) -> None:
    own = Volume("/data", str(data / "own"))
    assert told(node, boxed("touch /data/new && echo made", volumes=(own,))) == "made\n"
    assert (data / "own/new").stat().st_uid == UID
    fixed = Volume("/data", str(data / "own"), read_only=True)
    assert told(node, boxed("touch /data/more 2>/dev/null || ls /data", volumes=(fixed,))).splitlines()[-1] == "new"
    single = Volume("/word", str(data / "own/new"))
    assert told(node, boxed("test -f /word && echo file", volumes=(single,))) == "file\n"


@pytest.mark.parametrize("place", ["others", "others/inner"])
def test_inaccessible_folder_cannot_be_mounted(node: Node, data: Path, place: str) -> None:
    report = node.run_to_end(boxed("ls", "/data", volumes=(Volume("/data", str(data / place)),)))
    assert report.reason is ExitReason.START_FAILED
    assert str(data / place) in report.message


@pytest.mark.parametrize("place", ["/", "/etc", "/proc/1", "/sys", "/dev", "/run", "/var/run", "/usr"])
def test_system_folders_cannot_be_mounted(node: Node, place: str) -> None:
    report = node.run_to_end(boxed("true", volumes=(Volume("/data", place),), uid=0))
    assert report.reason is ExitReason.START_FAILED
    assert "machine" in report.message


def test_pool_folders_cannot_be_mounted_by_any_name(node: Node, data: Path) -> None:
    link = data / "own/link"
    link.unlink(missing_ok=True)
    link.symlink_to(node.run)
    for place in (node.run, node.state.path, node.root, link, data / "own/../own/link"):
        report = node.run_to_end(boxed("true", volumes=(Volume("/data", str(place)),), uid=0))
        assert report.reason is ExitReason.START_FAILED, place


def test_volumes_must_be_in_allowed_folders(node: Node, data: Path) -> None:
    good, bad = Volume("/data", str(data / "own/inner")), Volume("/data", str(data / "others"))
    roots = (str(data / "own"),)
    assert told(node, boxed("echo ok ; true", volumes=(good,), roots=roots)) == "ok\n"
    (data / "own/out").unlink(missing_ok=True)
    (data / "own/out").symlink_to(data)
    for volume in (bad, Volume("/data", str(data / "own/out"))):
        report = node.run_to_end(boxed("true", volumes=(volume,), roots=roots, uid=0))
        assert report.reason is ExitReason.START_FAILED
        assert "outside the allowed volume folders" in report.message


def test_empty_volumes_belong_to_one_attempt(node: Node) -> None:
    made = (
        Volume("/scratch", kind=VolumeKind.EMPTY),
        Volume("/quick", kind=VolumeKind.MEMORY, size_mib=2),
    )
    wanted = boxed(
        "touch /scratch/x && dd if=/dev/zero of=/quick/x bs=1M count=4 2>/dev/null || ls /scratch", volumes=made
    )
    assert told(node, wanted) == "x\n"
    assert eventually(lambda: not list(node.state.replica(wanted.key).path.glob("empty")), "it went")


def test_checkpoint_is_reported_from_inside(node: Node) -> None:
    wanted = boxed("touch $GPUPOOL_PROGRESS_FILE && echo 1 > $GPUPOOL_PROGRESS_FILE && echo written")
    assert told(node, wanted) == "written\n"
    status = node.status(wanted.key)
    assert status.saved_at is not None


# -- the end ---------------------------------------------------------------------------------------------------------


def test_stop_signal_reaches_only_the_program_once(node: Node) -> None:
    program = (
        "trap 'echo heard; heard=1' TERM; echo ready; until [ $heard ]; do sleep 0.1 & wait $!; done; sleep 0.3; exit 4"
    )
    wanted = boxed(program, grace_s=20.0)
    node.start(wanted)
    eventually(lambda: b"ready" in node.log(wanted.key))
    node.ask("stop", key=wanted.key, grace_s=20.0)
    report = node.ended(wanted.key)
    assert (report.reason, report.exit_code) == (ExitReason.STOPPED, 4)
    lines = node.log(wanted.key).decode().splitlines()
    assert [line for line in lines if line != "Terminated"] == ["ready", "heard"]  # the shell's word for its sleep


def test_program_that_ignores_stop_is_killed_and_nothing_is_left(node: Node, container_store: Path) -> None:
    wanted = boxed("trap '' TERM; echo ready; while true; do sleep 1; done", max_time_s=2.0, grace_s=0.3)
    report = node.run_to_end(wanted)
    assert report.reason is ExitReason.TIME_LIMIT
    name = f"gpupool-{wanted.key}"
    assert eventually(lambda: name not in containers(container_store / "store"), "its container is gone")
    assert eventually(lambda: not list(Path("/sys/fs/cgroup").glob(f"*/gpupool/{wanted.key}")), "its group is gone")


def test_memory_above_the_limit_ends_the_program(node: Node) -> None:
    wanted = boxed("dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1", memory_mib=64)
    report = node.run_to_end(wanted)
    assert report.status == 137
    assert "64 MiB" in report.message


@pytest.mark.parametrize("victim", ["shepherd", "podman", "conmon"])
def test_kill_9_leaves_no_container(node: Node, container_store: Path, victim: str) -> None:
    wanted = boxed("sleep", "300", grace_s=1.0)
    node.start(wanted)
    pids = inside_of(node, wanted.key)
    shepherd = node.shepherd(wanted.key)
    os.kill(shepherd if victim == "shepherd" else engine_pid(node, wanted.key, victim.encode()), signal.SIGKILL)
    report = node.ended(wanted.key)
    assert report.status != 0
    assert report.reason is (ExitReason.SHEPHERD_LOST if victim == "shepherd" else ExitReason.EXITED)
    assert not process_tree.alive(pids, process_tree.scan())
    name = f"gpupool-{wanted.key}"
    assert eventually(lambda: name not in containers(container_store / "store"), "its container is gone")


def test_containers_survive_agent_and_unknown_ones_are_removed(container_store: Path) -> None:
    with fresh_node() as node:
        wanted = boxed("echo began; sleep 300")
        node.start(wanted)
        pids = inside_of(node, wanted.key)
        node.down(signal.SIGKILL)
        stranger = ["--name", "gpupool-w00000000zz.0.1", "--label", f"gpupool.pool={node.run}"]
        podman(container_store / "store", "create", *stranger, "localhost/tiny:1", "true")
        node.up()
        assert node.running(wanted.key).exit is None
        assert execution.processes(node.shepherd(wanted.key)).keys() == pids.keys()
        found = containers(container_store / "store")
        assert f"gpupool-{wanted.key}" in found
        assert "gpupool-w00000000zz.0.1" not in found
        node.ask("stop", key=wanted.key, grace_s=0)
        assert node.ended(wanted.key).reason is ExitReason.STOPPED


# -- GPUs ------------------------------------------------------------------------------------------------------------


def test_slice_limits_apply_inside_a_container(node: Node) -> None:
    share = GpuShare(emulated_uuid("n1", 0), 0, 100, T4_MIB // 10)
    wanted = boxed("take_all; sleep 300", gpus=(share,), lease=71)
    node.start(wanted)
    lines = dict(line.split() for line in eventually(lambda: _lines(node, wanted, 2), "it has all it gets"))
    assert int(lines["total"]) == T4_MIB // 10
    assert T4_MIB // 10 - 64 - 128 - 8 <= int(lines["got"]) <= T4_MIB // 10 - 128
    status = node.status(wanted.key)
    assert status is not None
    assert status.mode == "share"
    again = boxed("take_all", gpus=(share,), lease=71, inside=wanted.key.rpartition(".")[0])
    assert int(dict(line.split() for line in told(node, again).splitlines())["total"]) == T4_MIB // 10
    node.ask("stop", key=wanted.key, grace_s=0)
    node.ended(wanted.key)


def test_slice_limits_apply_inside_a_container_without_variables(node: Node) -> None:
    share = GpuShare(emulated_uuid("n1", 0), 0, 100, T4_MIB // 10)
    wanted = boxed("busybox env -i /bin/take_all /usr/local/nvidia/lib64/libcuda.so.1", gpus=(share,))
    lines = dict(line.split() for line in told(node, wanted).splitlines())
    assert int(lines["total"]) == T4_MIB // 10
    assert int(lines["got"]) <= T4_MIB // 10 - 128


def test_image_with_musl_is_refused_in_a_slice(node: Node, container_store: Path, tmp_path: Path) -> None:
    share = GpuShare(emulated_uuid("n1", 0), 0, 100, T4_MIB // 10)
    make_musl_tree(tmp_path)
    import_image(container_store / "store", tmp_path, "localhost/musl:1")
    with pytest.raises(RefusedError, match="uses the C library musl") as refused:
        node.start(boxed("greet", image="musl:1", gpus=(share,)))
    assert refused.value.code == "UNSUPPORTED"
    assert told(node, boxed("sh", "-c", "echo ran", image="musl:1")).strip() == "ran"


def test_image_with_musl_runs_with_a_note_if_the_administrator_permits(
    container_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_MUSL_IMAGES", "warn")
    share = GpuShare(emulated_uuid("n1", 0), 0, 100, T4_MIB // 10)
    make_musl_tree(tmp_path)
    import_image(container_store / "store", tmp_path, "localhost/musl:2")
    with fresh_node() as own:
        wanted = boxed("sh", "-c", "echo [$LD_PRELOAD]", image="musl:2", gpus=(share,))
        assert told(own, wanted).strip() == "[]"
        status = own.status(wanted.key)
        assert status is not None
        assert [note for note in status.notes if "cannot be enforced" in note]


def test_whole_gpu_is_available_inside_a_container(node: Node) -> None:
    share = GpuShare(emulated_uuid("n1", 0), 0, 1000, T4_MIB)
    lines = dict(line.split() for line in told(node, boxed("take_all", gpus=(share,))).splitlines())
    assert int(lines["total"]) == T4_MIB


# -- others in it ----------------------------------------------------------------------------------------------------


def test_two_users_run_at_once_and_exec_enters_container(node: Node) -> None:
    private = Volume("/scratch", kind=VolumeKind.EMPTY)
    first = boxed("echo mine > /scratch/x; echo ready; sleep 300", volumes=(private,), env={"MARK": "a"})
    second = boxed("sleep", "300", uid=OTHER)
    for wanted in (first, second):
        node.start(wanted)
    eventually(lambda: b"ready" in node.log(first.key))
    inside_of(node, second.key)
    replica = first.key.rpartition(".")[0]
    again = boxed("cat /scratch/x; id; exit 6", inside=replica)
    assert node.run_to_end(again).exit_code == 6
    assert node.log(again.key).decode().splitlines()[0] == "mine"
    place = node.state.replica(first.key).path / "empty/0"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert place.stat().st_uid == UID
    for wanted in (first, second):
        node.ask("stop", key=wanted.key, grace_s=0)
        node.ended(wanted.key)
    with pytest.raises(RefusedError) as refused:
        node.start(boxed("true", inside=replica))
    assert refused.value.code == "WRONG_STATE"


def test_container_of_an_engine_that_was_killed_early_is_removed(container_store: Path, tmp_path: Path) -> None:
    store, folder = container_store / "store", tmp_path / "w0000000007.0.1"
    folder.mkdir()  # without the file that the engine writes after it has made the container
    podman(store, "create", "--name", f"gpupool-{folder.name}", "localhost/tiny:1", "true")
    options = ("--root", str(store / "storage"), "--runroot", str(store / "run"))
    cleanup.clean(ContainerEngine("podman", str(PODMAN), "", options), folder)
    assert f"gpupool-{folder.name}" not in containers(store)
