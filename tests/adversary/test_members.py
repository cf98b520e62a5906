"""A member of a pool on one machine uses up connections, memory and the log: the others continue to work."""

from __future__ import annotations

import json

import pytest
from attackers import ATTACKER, Scene, is_root
from e2e_pool import eventually

pytestmark = [pytest.mark.root, pytest.mark.skipif(not is_root(), reason="several accounts need root")]


def test_pool_answers_despite_thousands_of_idle_connections(scene: Scene) -> None:
    source = "held = [plain() for _ in range(4300)]\nhold(held)"
    with scene.program(source) as attacker:
        attacker.hear()
        scene.assert_everybody_is_answered()
        assert scene.ask_as(ATTACKER)[0] == 200
        assert eventually(lambda: attacker.open_now() <= 1024)


def test_pool_answers_despite_endless_streams(scene: Scene) -> None:
    source = """
held = []
for _ in range(1100):
    sock = plain()
    with contextlib.suppress(OSError):
        sock.sendall(b"GET /v1/events/stream HTTP/1.1\\r\\nHost: pool\\r\\n\\r\\n")
    held.append(sock)
say(len(held))
def refused():
    try:
        return ask("GET", "/v1/whoami")
    except (OSError, http.client.HTTPException):
        return [0, "{}"]
for _ in sys.stdin:
    say(refused())
"""
    with scene.requests_per_second(10_000), scene.program(source) as attacker:
        attacker.hear()
        scene.assert_everybody_is_answered()

        def is_refused() -> bool:
            assert attacker.process.stdin is not None
            attacker.process.stdin.write(b"\n")
            attacker.process.stdin.flush()
            status, text = attacker.hear()
            return (status, json.loads(text).get("error", {}).get("code")) == (503, "OVERLOADED")

        assert eventually(is_refused), "once the pool has read all requests"


def test_pool_answers_despite_aborted_requests(scene: Scene) -> None:
    source = """
for _ in range(10):
    held = []
    for _ in range(100):
        sock = plain()
        sock.sendall(b"POST /v1/workloads HTTP/1.1\\r\\nHost: pool\\r\\nContent-Type: application/json\\r\\n"
                     b"Content-Length: 100000\\r\\n\\r\\n{" + b" " * 1000)
        held.append(sock)
    for sock in held:
        sock.close()
say(True)
"""
    with scene.program(source) as attacker:
        assert attacker.hear()
        scene.assert_everybody_is_answered()


def test_pool_answers_despite_large_bodies(scene: Scene) -> None:
    source = """
held, piece = [], b" " * (1 << 20)
for _ in range(100):
    sock = plain()
    sock.settimeout(5)
    ignoring(lambda: sock.sendall(b"POST /v1/workloads HTTP/1.1\\r\\nHost: pool\\r\\n"
        b"Content-Type: application/json\\r\\nContent-Length: 8000000\\r\\n\\r\\n"))
    for _ in range(7):
        ignoring(lambda: sock.sendall(piece))
    held.append(sock)
hold(held)
"""
    with scene.program(source) as attacker:
        attacker.hear()
        assert eventually(lambda: attacker.open_now() <= 10)
        scene.assert_everybody_is_answered()


def test_pool_answers_despite_requests_in_a_loop(scene: Scene) -> None:
    source = """
codes, begin = collections.Counter(), time.monotonic()
def loop():
    connection = http.client.HTTPConnection("pool")
    connection.sock = plain()
    while codes[429] < 32 and time.monotonic() < begin + 30:
        connection.request("GET", "/v1/workloads")
        answer = connection.getresponse()
        answer.read()
        codes[answer.status] += 1
threads = [threading.Thread(target=loop) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say([codes[200], codes[429], time.monotonic() - begin])
"""
    with scene.requests_per_second(10), scene.program(source) as attacker:
        scene.assert_everybody_is_answered()
        answered, refused, seconds = attacker.hear()
    assert 0 < answered <= 50 + 10 * (seconds + 1)  # at most 50 at once, less after the tests before, and 10 a second
    assert 32 <= refused <= 32 + 16
    scene.assert_everybody_is_answered()
    sentence = f"requests were refused in the last 10 minutes because of too many requests per second: uid-{ATTACKER} ("
    assert sentence in scene.pool("status").stdout.decode()
    findings = scene.pool.json("doctor")["findings"]
    assert any(sentence in found["sentence"] for found in findings if found["check"] == "load")


@pytest.mark.parametrize(
    "sent",
    [
        r'b"GET /v1/whoami HTTP/1.1\r\nHost: pool\r\n\r\n" * 5000',
        r'b"\x16\x03\x01" * 50000',
        r'b"GET /" + b"x" * 200000',
        r'b"GET / HTTP/1.1\r\nx: " + b"y" * 200000',
        r'b"POST /v1/workloads HTTP/1.1\r\nHost: pool\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n" * 100',
    ],
    ids=["pipelined", "not HTTP", "long address", "long header", "broken chunks"],
)
def test_pool_answers_despite_invalid_requests(scene: Scene, sent: str) -> None:
    source = f"""
for _ in range(30):
    sock = plain()
    sock.settimeout(5)
    ignoring(lambda: sock.sendall({sent}))
    ignoring(lambda: sock.recv(1 << 20))
    sock.close()
say(True)
"""
    with scene.program(source) as attacker:
        assert attacker.hear()
        scene.assert_everybody_is_answered()
