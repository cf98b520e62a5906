"""Results of work are fetched, and its ports are forwarded."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e_pool import PATIENCE_S, eventually
from remote_world import Head, Laptop

root = pytest.mark.skipif(os.geteuid() != 0, reason="several users need root")
SERVER = """
import http.server, sys
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def done(laptop: Laptop, name: str, *command: str) -> None:
    laptop("submit", name, "-g", "0.05", "--", *command)
    laptop("wait", name)


def test_outputs_are_fetched(laptop: Laptop) -> None:
    laptop.write("source.py")
    done(
        laptop,
        "made",
        "sh",
        "-c",
        "mkdir -p out/sub; seq 200000 > out/numbers; chmod 640 out/numbers; echo y > out/sub/y",
    )
    assert [row["path"] for row in json.loads(laptop.text("fetch", "made", "--list", "--json"))["files"]] == [
        "out", "out/numbers", "out/sub", "out/sub/y", "source.py",
    ]  # fmt: skip
    laptop("fetch", "made", "out")
    numbers = laptop.work / "out/numbers"
    assert numbers.read_text() == "".join(f"{n}\n" for n in range(1, 200001))
    assert numbers.stat().st_mode & 0o777 == 0o640
    assert json.loads(laptop.text("fetch", "made", "out", "--json"))["bytes"] == 0
    laptop("fetch", "made", "-o", "elsewhere")
    assert (laptop.work / "elsewhere/out/sub/y").read_text() == "y\n"
    assert (laptop.work / "elsewhere/source.py").exists()


def test_different_local_files_are_kept(laptop: Laptop) -> None:
    laptop.write("file", b"sent")
    done(laptop, "changed", "sh", "-c", "echo changed > file")
    laptop.write("file", b"my own words")
    said = laptop("fetch", "changed", "file", ok=False)
    assert (said.returncode, (laptop.work / "file").read_bytes()) == (125, b"my own words")
    assert b"the local file differs" in said.stderr
    laptop("fetch", "changed", "file", "--force")
    assert (laptop.work / "file").read_bytes() == b"changed\n"


def test_fetched_links_stay_inside_the_folder(laptop: Laptop, tmp_path: Path) -> None:
    """Neither out of the folder there, to be read, nor out of the one here, to be written through."""
    victim = tmp_path / "victim"
    victim.mkdir()
    laptop.write("x")
    script = f"ln -s /etc/passwd secrets; ln -s {victim} out; ln -s x inside; mkfifo pipe; ln -s .. up"
    done(laptop, "links", "sh", "-c", script)
    said = laptop("fetch", "links", "-o", "got", ok=False)
    assert said.returncode == 125
    assert sorted(path.name for path in (laptop.work / "got").iterdir()) == ["inside", "x"]
    for path in ("secrets", "up/made.json", "out/x", "../made.json", "/etc/passwd"):
        assert laptop("fetch", "links", path, "-o", "more", ok=False).returncode == 125, path
    (laptop.work / "trap").mkdir()
    (laptop.work / "trap/out").symlink_to(victim)
    done(laptop, "writes", "sh", "-c", "mkdir -p out; echo evil > out/authorized_keys")
    assert laptop("fetch", "writes", "out", "-o", "trap", ok=False).returncode == 125
    assert list(victim.iterdir()) == []


def test_file_transfer_resumes_at_its_offset(laptop: Laptop) -> None:
    laptop.write("x")
    done(laptop, "large", "sh", "-c", "seq 1000000 > large")
    row = json.loads(laptop.text("fetch", "large", "large", "--list", "--json"))["files"][0]
    whole = "".join(f"{n}\n" for n in range(1, 1000001)).encode()
    (laptop.work / f".large.{row['size']}-{int(row['mtime'] * 1000)}.part").write_bytes(whole[:5_000_000])
    assert json.loads(laptop.text("fetch", "large", "large", "--json"))["bytes"] == len(whole) - 5_000_000
    assert (laptop.work / "large").read_bytes() == whole
    assert not list(laptop.work.glob(".large*"))


@contextmanager
def forwarded(laptop: Laptop, name: str, port: int) -> Iterator[int]:
    process = laptop.begin("forward", name, f"0:{port}")
    try:
        assert process.stderr is not None
        yield int(re.search(rb"127.0.0.1:(\d+) forwards", process.stderr.readline()).group(1))  # type: ignore[union-attr]
    finally:
        process.terminate()
        process.wait()


def get(port: int, path: str = "/hello") -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: sock.recv(65536), b""))


@contextmanager
def serving(laptop: Laptop, head: Head, name: str) -> Iterator[int]:
    laptop.write("hello", b"here I am" * 100_000)
    laptop("submit", name, "-g", "0.05", "--", "python3", "-c", SERVER)
    try:
        assert eventually(lambda: laptop("logs", name, ok=False).stdout.strip().isdigit())
        yield int(laptop.text("logs", name))
    finally:
        laptop("stop", "--force", name, ok=False)


def test_port_of_the_program_is_forwarded(laptop: Laptop, head: Head) -> None:
    with serving(laptop, head, "server") as port:
        with forwarded(laptop, "server", port) as near:
            for _ in range(3):
                assert get(near).endswith(b"here I am" * 100_000)
        here = head.pool.begin("forward", "server", f"0:{port}")
        assert here.stderr is not None
        near = int(re.search(rb"127.0.0.1:(\d+) forwards", here.stderr.readline()).group(1))  # type: ignore[union-attr]
        assert get(near).endswith(b"here I am")
        here.terminate()
        here.wait()


def test_other_ports_of_the_machine_are_refused(laptop: Laptop, head: Head) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, serving(laptop, head, "closed"):
        port = other.getsockname()[1]
        process = laptop.begin("forward", "closed", f"0:{port}")
        assert process.stderr is not None
        near = int(re.search(rb"127.0.0.1:(\d+) forwards", process.stderr.readline()).group(1))  # type: ignore[union-attr]
        with socket.create_connection(("127.0.0.1", near)) as sock:
            assert sock.recv(100) == b""
        assert b"No process of the job listens" in process.stderr.readline()
        process.terminate()
        process.wait()


@root
def test_forwarded_connection_runs_as_the_user(ada: Laptop, grace: Laptop, head: Head) -> None:
    script = (
        "import socket; s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1], flush=True)\n"
        "c,a=s.accept(); rows=open('/proc/net/tcp').read().split('\\n')[1:]\n"
        "ends=lambda r: [int(r.split()[n].split(':')[1],16) for n in (1,2)]\n"
        "uid=[r.split()[7] for r in rows if r and ends(r)==[a[1],s.getsockname()[1]]]\n"
        "c.sendall(repr(uid).encode()); c.close()"
    )
    ada.write("x")
    ada("submit", "who", "-g", "0.05", "--", "python3", "-c", script)
    assert eventually(lambda: ada("logs", "who", ok=False).stdout.strip().isdigit())
    port = int(ada.text("logs", "who"))
    assert grace("forward", "who", str(port), ok=False).returncode == 125
    with forwarded(ada, "who", port) as near, socket.create_connection(("127.0.0.1", near), timeout=PATIENCE_S) as sock:
        assert sock.recv(100) == b"['54321']"


@root
def test_unreadable_files_are_not_fetched(ada: Laptop, head: Head, tmp_path: Path) -> None:
    """Check that a program that replaces its files by links gets no more rights than its user."""
    ada.write("x")
    done(ada, "sly", "sh", "-c", "echo mine > a; mkdir d; echo x > d/shadow; pwd")
    folder = Path(head.pool.text("logs", "sly").strip())
    (folder / "a").unlink()
    os.link(_root_file(folder), folder / "a")  # as where hard links are not protected
    said = ada("fetch", "sly", "a", "-o", "got", ok=False)
    assert said.returncode == 125
    assert not (ada.work / "got/a").exists()
    subprocess.run(["rm", "-rf", folder / "d"], check=True)
    (folder / "d").symlink_to("/etc")
    assert ada("fetch", "sly", "d/shadow", "-o", "got", ok=False).returncode == 125


def _root_file(folder: Path) -> Path:
    place = folder.parent / "of-root"
    place.write_text("root's")
    place.chmod(0o600)
    return place
