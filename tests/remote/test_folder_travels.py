"""A folder goes along: the program sees exactly the sender's files, as its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from e2e_pool import eventually
from remote_world import STUDENT, Head, Laptop, Proxy

from gpupool.cli.transport.pool import PoolClient
from gpupool.cli.transport.remote import RemoteTransport
from gpupool.client.discovery import Remote
from gpupool.client.files.upload import Uploader, UploadResult, send_folder
from gpupool.domain.errors import ErrorCode, GpupoolError

root = pytest.mark.skipif(os.geteuid() != 0, reason="several users need root")
LOOK = """
import hashlib, json, os, stat, sys
rows = {}
for folder, below, names in os.walk(".", followlinks=False):
    for name in below + names:
        path = os.path.relpath(os.path.join(folder, name))
        about = os.lstat(path)
        row = {"mode": oct(stat.S_IMODE(about.st_mode)), "kind": stat.S_IFMT(about.st_mode)}
        if stat.S_ISLNK(about.st_mode):
            row = {"target": os.readlink(path)}
        elif stat.S_ISREG(about.st_mode):
            row |= {"sha": hashlib.sha256(open(path, "rb").read()).hexdigest(), "mtime": about.st_mtime_ns}
        rows[os.fsencode(path).hex()] = row
print(json.dumps(rows, sort_keys=True))
"""


def seen_here(folder: Path) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", LOOK], cwd=folder, capture_output=True, check=True)
    return dict(json.loads(done.stdout))


def test_program_sees_exactly_the_sent_files(laptop: Laptop) -> None:
    laptop.write("main.py", b"print('hello')\n").chmod(0o755)
    laptop.write("data/read-only.bin", os.urandom(300_000)).chmod(0o440)
    laptop.write("data/large.bin", os.urandom(9_000_000))
    laptop.write("data/same.bin", (laptop.work / "data/large.bin").read_bytes())
    laptop.write("empty", b"")
    laptop.write("a name with spaces\nand lines")
    laptop.write("données.txt")
    (laptop.work / os.fsdecode(b"not-utf8-\xff\xfe")).write_bytes(b"bytes")
    os.link(laptop.work / "main.py", laptop.work / "hard.py")
    (laptop.work / "closed").mkdir(mode=0o500)
    (laptop.work / "nothing in it").mkdir()
    (laptop.work / "link").symlink_to("data/large.bin")
    (laptop.work / "dangling").symlink_to("nowhere")
    assert json.loads(laptop.run("python3", "-c", LOOK)) == seen_here(laptop.work)


def test_ignored_files_are_not_sent(laptop: Laptop) -> None:
    for path in (".git/config", "__pycache__/x.pyc", "keep.log", "drop.log", "out/big.bin", "sub/drop.log", ".venv/x"):
        laptop.write(path)
    laptop.write(".gpupoolignore", b"*.log\n!keep.log\n/out/\n")
    laptop.write("sub/.gitignore", b"secret\n")
    laptop.write("sub/secret")
    found = laptop.run("sh", "-c", "find . -type f | sort").split()
    assert found == ["./.gpupoolignore", "./keep.log", "./sub/.gitignore", "./sub/secret"]
    assert "./sub/secret" not in laptop.text("run", "-q", "-p", "0.05", "--gitignore", "--", "find", ".").split()


def test_program_starts_in_subfolder_of_uploaded_folder(laptop: Laptop) -> None:
    laptop.write("sub/here")
    laptop.write("above")
    assert laptop.text("run", "-q", "-p", "0.05", "-w", "sub", "--", "ls", ".", "..").split() == [
        ".:", "here", "..:", "above", "sub",
    ]  # fmt: skip


def test_folder_is_not_sent_on_request_or_from_home(laptop: Laptop) -> None:
    laptop.write("mine")
    assert "mine" not in laptop.text("run", "-q", "-p", "0.05", "--no-files", "--", "ls")
    home = laptop("run", "-p", "0.05", "--", "ls", cwd=laptop.home)
    assert b"is not uploaded" in home.stderr


def test_submit_and_the_lease_commands_take_the_folder(laptop: Laptop) -> None:
    laptop.write("words", b"from the laptop")
    laptop("submit", "batch", "-g", "0.05", "--", "cat", "words")
    laptop("wait", "batch")
    assert laptop.text("logs", "batch").strip() == "from the laptop"
    laptop("request_gpus", "-p", "0.05")
    try:
        assert laptop.text("client", "--", "cat", "words") == "from the laptop"
        laptop.write("words", b"changed")
        assert laptop.text("client", "--", "cat", "words") == "changed"
    finally:
        laptop("release_gpus")


def test_environment_is_that_of_node_except_named_variables(laptop: Laptop) -> None:
    env = {**laptop.env, "MINE": "1", "VIRTUAL_ENV": "/laptop/venv", "PATH": f"/laptop/bin:{laptop.env['PATH']}"}
    said = laptop.text("run", "-q", "-p", "0.05", "--", "env", env=env)
    assert "MINE=1" in said
    assert "/laptop/" not in said
    assert "GPUPOOL_TOKEN" not in said
    assert "FOO=/laptop" in laptop.text("run", "-q", "-p", "0.05", "-e", "FOO=/laptop", "--", "env")


def test_files_option_copies_folder_on_local_machine(head: Head) -> None:
    work = head.pool.work
    (work / "now").write_text("as it was")
    head.pool("submit", "frozen", "-g", "0.05", "--files", "--", "sh", "-c", "cat now; touch made")
    head.pool("wait", "frozen")
    assert head.pool.text("logs", "frozen") == "as it was"
    assert not (work / "made").exists()


def test_only_changed_files_are_sent_again(laptop: Laptop, head: Head) -> None:
    transport = gate_of(laptop)
    laptop.write("large", os.urandom(5_000_000))
    laptop.write("small", os.urandom(500))
    first = send_folder(transport, str(laptop.work))
    assert first.sent_bytes > 5_000_000
    again = send_folder(transport, str(laptop.work))
    assert (again.tree, again.sent_bytes) == (first.tree, 0)
    laptop.write("small", b"other")
    changed = send_folder(transport, str(laptop.work))
    assert changed.tree != first.tree
    assert changed.sent_bytes < 2_000


@root
def test_sent_folder_belongs_to_the_user(ada: Laptop, head: Head) -> None:
    ada.write("mine", b"ada's")
    said = ada.run("sh", "-c", "id -u; stat -c %u . mine; cat mine; echo; touch new && stat -c %u new; pwd").split()
    assert said[:5] == [str(STUDENT)] * 3 + ["ada's", str(STUDENT)]
    folder = Path(said[5])
    assert folder.stat().st_uid == STUDENT
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.parent.stat().st_uid == 0


@root
def test_another_user_reaches_neither_the_folder_nor_the_blobs(ada: Laptop, grace: Laptop, head: Head) -> None:
    ada.write("secret", b"only ada knows this")
    ada("submit", "hers", "-g", "0.05", "--", "sh", "-c", "pwd; sleep 1000")
    try:
        assert head.pool.becomes("hers", "running")
        assert eventually(lambda: ada.text("logs", "hers").endswith("\n"))
        folder = ada.text("logs", "hers").strip()
        done = grace("run", "-q", "-p", "0.05", "--", "cat", f"{folder}/secret", ok=False)
        assert done.returncode != 0
        assert b"ada knows" not in done.stdout
        for command in (["fetch", "hers"], ["logs", "hers"], ["forward", "hers", "8000"]):
            assert grace(*command, ok=False).returncode == 125, command
    finally:
        ada("stop", "--force", "hers", ok=False)


@root
def test_digest_alone_gives_no_access(ada: Laptop, grace: Laptop, head: Head) -> None:
    """A digest neither reveals that another user has the content, nor puts it into a folder."""
    secret = b"the answers of the exam"
    ada.write("answers", secret)
    ada.run("true")
    digest = hashlib.sha256(secret).hexdigest()
    pool = PoolClient(gate_of(grace))
    assert pool.post("files/held", {"blobs": [[digest, len(secret)]]}) == {"held": [-1]}
    manifest = json.dumps(
        {"version": 1, "files": [["stolen", 0o600, 0, len(secret), digest]], "links": [], "folders": []}
    ).encode()
    sender = Uploader(pool.transport, str(grace.work), lambda _: None)
    sender._ask("POST", "/v1/files/pack", len(manifest).to_bytes(4, "big") + manifest)
    tree = hashlib.sha256(manifest).hexdigest()
    for ask in (
        lambda: pool.post("files/trees", {"tree": tree}),
        lambda: pool.post("workloads", {"command": ["cat", "stolen"], "tree": tree, "kind": "training"}),
    ):
        with pytest.raises(GpupoolError) as refused:
            ask()
        assert refused.value.code is ErrorCode.NOT_FOUND


def test_simultaneous_uploads_of_equal_files_work(laptop: Laptop) -> None:
    laptop.write("big", os.urandom(6_000_000))
    laptop.write("check.py", b"import hashlib; print(hashlib.sha256(open('big','rb').read()).hexdigest())")
    both = [laptop.begin("run", "-q", "-p", "0.05", "--", "python3", "check.py") for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    wanted = hashlib.sha256((laptop.work / "big").read_bytes()).hexdigest()
    assert [out.decode().strip() for out, _ in said] == [wanted] * 2, said


def test_retried_program_keeps_its_files(laptop: Laptop, head: Head) -> None:
    laptop.write("again.sh", b"echo x >> tries; test $(wc -l < tries) -ge 2")
    laptop("submit", "twice", "-g", "0.05", "--backoff-limit", "3", "--", "sh", "again.sh")
    laptop("wait", "twice")
    assert head.pool.json("describe", "twice")["state"] == "succeeded"


def test_delete_removes_the_job_folder(laptop: Laptop, head: Head) -> None:
    laptop.write("x")
    laptop("submit", "gone", "-g", "0.05", "--", "pwd")
    laptop("wait", "gone")
    folder = Path(laptop.text("logs", "gone").strip())
    assert folder.exists()
    laptop("delete", "gone")
    assert eventually(lambda: not folder.exists())
    shutil.rmtree(laptop.work)


def gate_of(laptop: Laptop) -> RemoteTransport:
    login = json.loads((laptop.home / ".config/gpupool/logins.json").read_text())["pools"]["lab"]
    return RemoteTransport(Remote(login["url"], login["token"], None, login["certificate"]))


def test_killed_transfer_resumes(laptop: Laptop, head: Head) -> None:
    laptop.write("large", os.urandom(40_000_000))
    parts = head.pool.state / "files/u-root/parts"
    known = set(parts.glob("*"))
    direct, proxy = laptop.url, Proxy(head, most_bytes=25_000_000)
    laptop.url = f"127.0.0.1:{proxy.port}"
    laptop.login(head.token())
    client = laptop.begin("run", "-q", "-p", "0.05", "--", "true")
    assert eventually(lambda: any(part.stat().st_size > 0 for part in set(parts.glob("*")) - known))
    client.kill()
    client.wait()
    proxy.close()
    laptop.url = direct
    laptop.login(head.token())
    sent = send_folder(gate_of(laptop), str(laptop.work))
    assert 0 <= sent.sent_bytes < 40_000_000
    assert send_folder(gate_of(laptop), str(laptop.work)).sent_bytes == 0


def test_transfer_survives_killed_control_plane(laptop: Laptop, head: Head) -> None:
    laptop.write("large", os.urandom(20_000_000))
    found: list[UploadResult] = []
    sending = threading.Thread(target=lambda: found.append(send_folder(gate_of(laptop), str(laptop.work))))
    sending.start()
    head.pool.kill_child("control-plane")
    sending.join()
    assert found
    script = "import hashlib; print(hashlib.sha256(open('large','rb').read()).hexdigest())"
    assert (
        laptop.run("python3", "-c", script).strip() == hashlib.sha256((laptop.work / "large").read_bytes()).hexdigest()
    )
