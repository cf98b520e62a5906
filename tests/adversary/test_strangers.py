"""A client without a token uses up the resources of a port on the network: callers with a token continue to work."""

from __future__ import annotations

import pytest
from attackers import Scene, is_root
from e2e_pool import eventually

pytestmark = [pytest.mark.root, pytest.mark.skipif(not is_root(), reason="several accounts need root")]


def test_pool_answers_despite_connections_without_tls_handshake(scene: Scene) -> None:
    source = "held = [plain() for _ in range(1500)]\nhold(held)"
    with scene.program(source, network=True) as attacker:
        attacker.hear()
        scene.assert_everybody_is_answered()
        assert eventually(lambda: attacker.open_now() <= 128)


def test_pool_answers_despite_incomplete_handshakes(scene: Scene) -> None:
    source = """
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
client = context.wrap_bio(into, out)
with contextlib.suppress(ssl.SSLWantReadError):
    client.do_handshake()
hello, held = out.read(), []
for number in range(600):
    sock = plain()
    ignoring(lambda: sock.sendall(hello[: len(hello) // 2 if number % 2 else len(hello)]))
    held.append(sock)
say(len(held))
for _ in sys.stdin:
    pass
"""
    with scene.program(source, network=True) as attacker:
        attacker.hear()
        scene.assert_everybody_is_answered()


def test_pool_answers_despite_incomplete_headers_over_tls(scene: Scene) -> None:
    source = """
held = []
for _ in range(1060):
    sock = ignoring(secure)
    if sock is not None:
        ignoring(lambda: sock.sendall(b"GET /v1/pool HTTP/1.1\\r\\nHost: pool\\r\\nx: "))
        held.append(sock)
hold(held)
"""
    with scene.program(source, network=True) as attacker:
        attacker.hear()
        scene.assert_everybody_is_answered()
        assert eventually(lambda: attacker.open_now() <= 128)


def test_valid_token_works_despite_wrong_tokens_from_same_address(scene: Scene) -> None:
    source = """
codes = []
for number in range(130):  # all within the minute that the pool remembers
    shown = "gpt_00000000_stale" if number < 20 else "gpt_%08x_guess" % number
    codes.append(ask("GET", "/v1/whoami", headers={"authorization": "Bearer " + shown}, connect=secure)[0])
say(codes)
"""
    with scene.program(source, network=True) as attacker:
        codes = attacker.hear()
        scene.assert_everybody_is_answered()
    assert codes[:20] == [401] * 10 + [429] * 10
    assert codes[20:100] == [401] * 80
    assert set(codes[100:]) == {429}
