"""The native program ``gpupool``: it sends the request that Python would send, or leaves the words to Python.

``tests/cli/test_fast_run.py`` shows that it then does the same as Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpupool.cli.fast import commands, launch
from gpupool.cli.request import options, request_body

# Prints its arguments and what it was handed over, as JSON.
STAND_IN = """\
import json, os, sys
from gpupool.cli.fast import commands, launch
inherited = os.environ.get(commands.EARLY_REQUEST_VARIABLE)
early = commands.take_early_request()
shown = None if early is None else [early.body, early.api_socket, os.get_inheritable(early.exchange.fileno())]
print(json.dumps([[os.fsencode(word).hex() for word in sys.argv[1:]], inherited is not None, shown]))
"""
SENT = [
    ("--", "true"),
    ("true",),
    ("-", "a"),
    ("-g", "1", "--", "python", "train.py", "-g", "2"),
    ("-g2", "true"),
    ("-g", "0.25", "true"),
    ("--gpu=0.005", "true"),
    ("-g", "007", "true"),
    ("-n", "2", "-m", "4G", "true"),
    ("-n0", "true"),
    ("--num_gpus", "1", "-p", "10%", "true"),
    ("--num-gpus=1", "--partial=0.1", "true"),
    ("-m", "2048", "-q", "true"),
    ("--quiet", "--gpu-memory", "1", "--name", "é 😀", "--project=a", "--max-time", "2h", "--wait", "0", "true"),
    ("--timeout", "30m", "--name", "", "true"),
    ("true", "a b", "", '"\\\n\t\x01\x7f', "é😀"),
    ("/bin/sh -c", "true"),
]
LEFT_TO_PYTHON = [
    (),
    ("run",),
    ("run", "-g"),
    ("run", "-g", "1"),
    ("run", "-g", "1", "--"),
    ("run", "--help"),
    ("run", "-h", "true"),
    ("ps",),
    ("client", "--", "true"),
    ("run", "-g", "x", "true"),
    ("run", "-g", "1.5", "true"),
    ("run", "-g", "0.0", "true"),
    ("run", "-g", "0.1234", "true"),
    ("run", "-g", "1000", "true"),
    ("run", "-n", "-1", "true"),
    ("run", "-n", "x", "true"),
    ("run", "-g", "1", "-n", "1", "true"),
    ("run", "-p", "0.1", "-m", "100", "true"),
    ("run", "-g", "1", "-g", "2", "true"),
    ("run", "-qg", "1", "true"),
    ("run", "--gpus", "1", "true"),
    ("run", "-e", "A=1", "true"),
    ("run", "-d", "true"),
    ("run", "-i", "image", "true"),
    ("run", "--no-tty", "true"),
    ("run", "python train.py"),
    ("run", "--name", b"\xff", "true"),
    ("run", "true", b"\xed\xa0\x80"),
]


class Installed:
    """The program in a folder of its own, with a stand-in for Python, and a pool that only records a request."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.program = folder / "bin/gpupool"
        self.program.parent.mkdir()
        shutil.copy2(program, self.program)
        python = self.program.with_name("gpupool-python")
        python.write_text(f"#!{sys.executable}\n{STAND_IN}", encoding="utf-8")
        python.chmod(0o755)
        self.state = folder / "state"
        self.home = folder / "home"
        self.home.mkdir()
        self.env = {"HOME": str(self.home), "GPUPOOL_STATE_DIR": str(self.state), "LC_ALL": "C.UTF-8"}

    @contextlib.contextmanager
    def listening(self, path: Path | None = None) -> Iterator[list[bytes]]:
        """Listen as the pool and collect what clients send."""
        path = path or self.state / "run/api.sock"
        path.parent.mkdir(parents=True, exist_ok=True)
        received: list[bytes] = []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            reader = threading.Thread(target=_collect, args=(listener, received))
            reader.start()
            try:
                yield received
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                reader.join()
                path.unlink()

    def __call__(self, *words: str | bytes, **more: Any) -> list[Any]:
        """Run the program and return the arguments of Python, and what Python took over."""
        choices = {"env": self.env, "cwd": self.home, "stdin": subprocess.DEVNULL} | more
        done = subprocess.run([self.program, *words], capture_output=True, timeout=60, check=True, **choices)
        arguments, _, early = json.loads(done.stdout)
        assert arguments == [os.fsencode(word).hex() for word in words]
        return [early]


def _collect(listener: socket.socket, received: list[bytes]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client:
            if request := read_request(client):
                received.append(request)


def read_request(connection: socket.socket) -> bytes:
    """Return a whole request, or nothing if a client only looked whether the pool listens."""
    connection.settimeout(20)
    request = b""
    while b"\r\n\r\n" not in request or len(request.partition(b"\r\n\r\n")[2]) < length_of(request):
        data = connection.recv(1 << 16)
        if not data:
            break
        request += data
    return request


@pytest.fixture
def installed(tmp_path: Path, native_out: Path) -> Installed:
    return Installed(tmp_path, native_out / "gpupool-command")


def body_of(request: bytes) -> dict[str, Any]:
    head, _, body = request.partition(b"\r\n\r\n")
    target = f"/v1/workloads?wait=started&timeout_s={launch.FIRST_ANSWER_TIMEOUT_S}"
    assert head.startswith(f"POST {target} HTTP/1.1\r\nHost: gpupool\r\n".encode())
    assert f"Content-Length: {len(body)}".encode() in head
    found: dict[str, Any] = json.loads(body)
    return found


def expected_body(words: Sequence[str], env: dict[str, str], folder: Path) -> dict[str, Any]:
    """Return the body that Python sends for the words after ``run``."""
    with mock.patch.dict(os.environ, env, clear=True), contextlib.chdir(folder):
        body = request_body.workload_body(*options.parse(options.RUN, words)) | {"kind": "run"}
    return body | {"client_bound": True, "tty": False, "stdin": True, "rows": 24, "columns": 80}


def without_id(body: dict[str, Any]) -> dict[str, Any]:
    assert len(bytes.fromhex(body["request_id"])) == 16
    return {name: value for name, value in body.items() if name != "request_id"}


@pytest.mark.parametrize("words", SENT)
def test_sends_the_request_of_python(installed: Installed, words: tuple[str, ...]) -> None:
    with installed.listening() as received:
        (early,) = installed("run", *words)
    (request,) = received
    body = body_of(request)
    assert without_id(body) == without_id(expected_body(words, installed.env, installed.home))
    assert early == [body, str(installed.state / "run/api.sock"), False]


@pytest.mark.parametrize("words", LEFT_TO_PYTHON)
def test_leaves_other_words_to_python(installed: Installed, words: tuple[str | bytes, ...]) -> None:
    with installed.listening() as received:
        assert installed(*words) == [None]
    assert received == []


NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & {0, ord("=")})
VALUES = st.binary(max_size=40).filter(lambda value: 0 not in value)


@given(
    variables=st.dictionaries(NAMES | st.text(min_size=1, max_size=5).map(str.encode), VALUES, max_size=5),
    word=st.text(max_size=20).filter(lambda word: "\0" not in word),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_environment_is_that_of_python(installed: Installed, variables: dict[bytes, bytes], word: str) -> None:
    usable = {key: value for key, value in variables.items() if not set(key) & {0, ord("=")}}
    env = {os.fsdecode(key): os.fsdecode(value) for key, value in usable.items()} | installed.env
    try:
        word.encode()
    except UnicodeEncodeError:
        word = ""
    with installed.listening() as received:
        installed("run", "true", word, env=env)
    assert without_id(body_of(received[0])) == without_id(expected_body(("true", word), env, installed.home))


def test_first_of_repeated_variables_counts_and_secrets_are_left_out(installed: Installed) -> None:
    secrets = dict.fromkeys(request_body.SECRET_VARIABLES - {"GPUPOOL_URL"}, "s")  # this one leaves all to Python
    script = 'import os, sys; os.execve(sys.argv[1], ["gpupool", "run", "true"], {b"A": b"1", **os.environb})'
    with installed.listening() as received:
        installed("run", "true", env=installed.env | secrets | {"GPUPOOL_PROJECT": "p"})
        subprocess.run([sys.executable, "-c", script, installed.program], env=installed.env, check=True, timeout=60)
    first, _ = (body_of(request) for request in received)
    assert set(first["env"]) == {*installed.env, "GPUPOOL_PROJECT"}
    assert first["project"] == "p"


def test_umask_and_folder_are_those_of_the_caller(installed: Installed, tmp_path: Path) -> None:
    with installed.listening() as received:
        installed("run", "true", umask=0o27, cwd=tmp_path)
    body = body_of(received[0])
    assert (body["umask"], body["workdir"]) == ("027", str(tmp_path))


@pytest.mark.parametrize(
    "variables",
    [
        {"GPUPOOL_URL": "https://example.org"},
        {"GPUPOOL_POOL": "lab"},
        {"GPUPOOL_STATE_DIR": "state"},
        {"GPUPOOL_STATE_DIR": "~/state"},
        {"GPUPOOL_RUN_DIR": "/tmp/../tmp"},
        {"GPUPOOL_RUN_DIR": "/tmp/./x"},
        {"GPUPOOL_RUN_DIR": "/tmp//x"},
        {"GPUPOOL_RUN_DIR": f"/tmp/{'long' * 30}"},
        {"GPUPOOL_RUN_DIR": f"/{'long/' * 2000}x"},
    ],
)
def test_leaves_other_pools_to_python(installed: Installed, variables: dict[str, str]) -> None:
    with installed.listening() as received:
        assert installed("run", "true", env=installed.env | variables) == [None]
    assert received == []


def test_trailing_slash_is_left_to_python(installed: Installed) -> None:
    variables = {"GPUPOOL_STATE_DIR": f"{installed.state}/"}
    with installed.listening() as received:
        assert installed("run", "true", env=installed.env | variables) == [None]
    assert received == []


@pytest.mark.parametrize(("name", "variables"), [("config.json", {}), ("logins.json", {"GPUPOOL_STATE_DIR": ""})])
def test_settings_of_the_user_are_left_to_python(installed: Installed, name: str, variables: dict[str, str]) -> None:
    run_dir = installed.state / "run"
    env = installed.env | {"GPUPOOL_RUN_DIR": str(run_dir)} | variables
    folder = installed.home / ".config/gpupool"
    folder.mkdir(parents=True)
    (folder / name).write_text("{}", encoding="utf-8")
    with installed.listening() as received:
        assert installed("run", "true", env=env) == [None]
    assert received == []


def test_run_folder_is_found(installed: Installed, tmp_path: Path) -> None:
    path = tmp_path / "r/api.sock"
    with installed.listening(path) as received:
        (early,) = installed("run", "true", env=installed.env | {"GPUPOOL_RUN_DIR": str(path.parent)})
    assert (len(received), early[1]) == (1, str(path))


def test_pool_that_does_not_listen_is_left_to_python(installed: Installed) -> None:
    assert installed("run", "true") == [None]


def test_closed_descriptor_is_left_to_python(installed: Installed) -> None:
    with installed.listening() as received:
        assert installed("run", "true", stdin=None, preexec_fn=lambda: os.close(0)) == [None]
    assert received == []


def test_missing_python_is_reported(installed: Installed) -> None:
    python = installed.program.with_name("gpupool-python")
    python.unlink()
    done = subprocess.run([installed.program, "ps"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == (
        f"gpupool: {python} cannot be started: No such file or directory.\n  Install gpupool again.\n"
    )


def test_program_is_found_through_a_link(installed: Installed, tmp_path: Path) -> None:
    link = tmp_path / "gpupool"
    link.symlink_to(installed.program)
    done = subprocess.run([link, "ps"], capture_output=True, timeout=60, check=True, env=installed.env)
    assert json.loads(done.stdout)[0] == [b"ps".hex()]


@pytest.mark.parametrize("value", ["", "x", "1:2", "1:2:/x", "-1:5:/x", "70:71:/x", "٣:٤:/x"])
def test_variable_of_another_process_is_ignored(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(commands.EARLY_REQUEST_VARIABLE, value)
    assert commands.take_early_request() is None
    assert commands.EARLY_REQUEST_VARIABLE not in os.environ
    for fd in (1, 2):
        os.fstat(fd)


@pytest.fixture
def python(installed: Installed) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that runs the program with the real Python program."""
    installed.program.with_name("gpupool-python").write_text(
        f"#!{sys.executable}\nimport sys\nfrom gpupool.cli.entry import main\nsys.exit(main())\n", encoding="utf-8"
    )

    def start(*words: str, **variables: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        env = installed.env | variables
        return subprocess.Popen([installed.program, *words], env=env, stdout=pipe, stderr=pipe, stdin=pipe, text=True)

    return start


def test_broken_connection_is_followed_by_the_same_request(
    installed: Installed, python: Callable[..., subprocess.Popen[str]]
) -> None:
    path = installed.state / "run/api.sock"
    path.parent.mkdir(parents=True)
    refusal = json.dumps({"error": {"code": "INVALID_REQUEST", "message": "No.", "hint": "Stop."}}).encode()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client = python("run", "-g", "1", "--", "true")
        bodies = []
        while len(bodies) < 2:
            connection, _ = listener.accept()
            with connection:
                if request := read_request(connection):
                    bodies.append(body_of(request))
                if len(bodies) == 2:
                    head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(refusal)}\r\n\r\n"
                    connection.sendall(head.encode() + refusal)
        output, errors = client.communicate(timeout=60)
    assert bodies[0] == bodies[1]
    assert (client.returncode, output) == (125, ""), errors
    assert "No." in errors


def length_of(request: bytes) -> int:
    return int(request.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
