"""Cost of a network connection: keystrokes, output and upload of a folder, over TLS on the loopback address.

    python benchmarks/remote.py [--keys 300] [--mib 200] [--files 2000]

It uses a pool and a login to it. A keystroke is measured from a byte typed at a terminal until its echo is back,
through a real ``gpupool run`` on a pseudo-terminal: by the unix socket, and by TLS, WebSocket and control plane. Output
is ``head -c`` of /dev/zero through pipes. A folder is sent for the first time, again unchanged, and with one file
changed.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import shutil
import socket
import subprocess
import termios
import time
import tty
from contextlib import closing
from pathlib import Path
from typing import Any

from _common import GPUPOOL, Pool, machine, spread, table, write_result

Row = dict[str, Any]


class Networked(Pool):
    """A pool that listens on the loopback address, and the environment of a machine that has logged in to it."""

    def up(self) -> None:
        """Start it and log in."""
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        done = self.cli(
            "up",
            "--background",
            "--emulate",
            self.emulate,
            "--listen",
            address,
            "--tls-self-signed",
            "--dashboard",
            "off",
        )
        if done.returncode != 0:
            raise RuntimeError(f"gpupool up: {done.stderr.strip()}")
        self.work = self.folder / "work"
        self.work.mkdir()
        self.away = {k: v for k, v in self.env.items() if not k.startswith(("GPUPOOL_", "XDG_"))}
        self.away |= {"HOME": str(self.folder / "home")}
        Path(self.away["HOME"]).mkdir()
        command = self.cli("login-code").stdout.split()
        subprocess.run([GPUPOOL, *command[1:]], env=self.away, check=True, capture_output=True)

    def ways(self) -> dict[str, dict[str, str]]:
        """Return the two connections to it."""
        return {"unix socket": self.env, "TLS": self.away}


def keystrokes(pool: Networked, env: dict[str, str], count: int) -> list[float]:
    """Measure the milliseconds from a typed byte to its echo."""
    near, far = pty.openpty()
    tty.setraw(near, termios.TCSANOW)
    process = subprocess.Popen(
        [GPUPOOL, "run", "-q", "-t", "-p", "0.1", "--", "sh", "-c", "stty raw echo; echo ready; exec cat >/dev/null"],
        stdin=far, stdout=far, stderr=far, env=env, cwd=pool.work, start_new_session=True,
    )  # fmt: skip
    os.close(far)
    try:
        _until(near, b"ready")
        took = []
        for _ in range(count):
            time.sleep(0.005)
            began = time.perf_counter()
            os.write(near, b"k")
            _until(near, b"k")
            took.append((time.perf_counter() - began) * 1000)
        return took
    finally:
        process.kill()
        process.wait()
        os.close(near)


def _until(fd: int, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        if not select.select([fd], [], [], 60)[0]:
            raise TimeoutError(f"{wanted!r} did not come")
        seen += os.read(fd, 4096)


def output(pool: Networked, env: dict[str, str], mib: int) -> float:
    """Measure the MiB per second that reach the client."""
    command = ["sh", "-c", f"head -c {mib << 20} /dev/zero"]
    began = time.perf_counter()
    done = subprocess.run(
        [GPUPOOL, "run", "-q", "--no-tty", "-p", "0.1", "--", *command],
        env=env, cwd=pool.work, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    assert len(done.stdout) == mib << 20
    return mib / (time.perf_counter() - began)


def logs(pool: Networked, env: dict[str, str], mib: int) -> float:
    """Measure the MiB per second of a finished job's log."""
    name = f"logs-{time.monotonic_ns()}"
    script = f"head -c {mib * 3 << 18} /dev/urandom | base64"
    submit = [GPUPOOL, "submit", "-q", name, "-g", "0.1", "--no-files", "--log-limit", "1G", "--", "sh", "-c", script]
    subprocess.run(submit, env=pool.env, cwd=pool.work, check=True, capture_output=True)
    subprocess.run([GPUPOOL, "wait", name], env=pool.env, check=True, capture_output=True)
    began = time.perf_counter()
    done = subprocess.run([GPUPOOL, "logs", name], env=env, stdout=subprocess.PIPE, check=True)
    return len(done.stdout) / (1 << 20) / (time.perf_counter() - began)


def sending(pool: Networked, files: int, large_mib: int) -> dict[str, float]:
    """Measure the seconds of ``gpupool run -- true`` with a folder."""
    shutil.rmtree(pool.work)
    for number in range(files):
        place = pool.work / f"d{number % 50}" / f"f{number}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(os.urandom(4000))
    (pool.work / "large.bin").write_bytes(os.urandom(large_mib << 20))
    time.sleep(2.5)  # a recently changed file is read again
    took = {"no folder": _run(pool, "--no-files"), "first time": _run(pool), "again": _run(pool)}
    (pool.work / "d0/f0.py").write_bytes(b"changed")
    return took | {"one file changed": _run(pool)}


def _run(pool: Networked, *options: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        [GPUPOOL, "run", "-q", "-p", "0.1", *options, "--", "true"], env=pool.away, cwd=pool.work, check=True
    )
    return time.perf_counter() - began


def measure(options: argparse.Namespace) -> Row:
    """Run all measurements."""
    with Networked("1xT4") as pool:
        keys = {way: keystrokes(pool, env, options.keys) for way, env in pool.ways().items()}
        flow = {way: output(pool, env, options.mib) for way, env in pool.ways().items()}
        read = {way: logs(pool, env, options.mib // 4) for way, env in pool.ways().items()}
        sent = sending(pool, options.files, options.large_mib)
    return {
        "machine": machine(),
        "keystroke_ms": {way: spread(ms) for way, ms in keys.items()},
        "output_mib_s": {way: round(rate, 1) for way, rate in flow.items()},
        "logs_mib_s": {way: round(rate, 1) for way, rate in read.items()},
        "folder_s": {what: round(took, 2) for what, took in sent.items()},
        "folder": f"{options.files} files of 4 kB and one of {options.large_mib} MiB",
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=300)
    parser.add_argument("--mib", type=int, default=200)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--large-mib", type=int, default=100)
    found = measure(parser.parse_args())
    ways = list(found["keystroke_ms"])
    rows = [
        ["a keystroke, ms (p50 / p99)", *(f"{k['p50']} / {k['p99']}" for k in found["keystroke_ms"].values())],
        ["output, MiB/s", *found["output_mib_s"].values()],
        ["a finished job's log, MiB/s", *found["logs_mib_s"].values()],
    ]
    print(table(["", *ways], rows))
    print(f"\nrun -- true with {found['folder']}, s")
    print(table(["", "TLS"], found["folder_s"].items()))
    write_result("remote", found)


if __name__ == "__main__":
    main()
