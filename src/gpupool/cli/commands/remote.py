"""``login`` and ``logout``: pools over the network, each by a name."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import show, show_json, tell
from gpupool.domain.errors import ErrorCode, GpupoolError

if TYPE_CHECKING:
    from gpupool.cli.pool import Pool
    from gpupool.cli.remote import RemoteGate
    from gpupool.client.endpoint import TlsEndpoint

DEFAULT_PORT = 8443
_NAME = "Your name for it; made from the host's otherwise."


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    command(
        app,
        "gpupool login gpu1.lab",
        "gpupool login gpu1.lab:8443 --fingerprint 3f9a...",
        "gpupool login gpu1.lab:8443 --code CODE",
        "gpupool login lab",
        "gpupool login",
    )(login)
    command(app, "gpupool logout", "gpupool logout lab")(logout)
    command(app, "gpupool login_code", "gpupool login_code --user ada --expires 90d", name="login_code")(login_code)


def login(
    *,
    head: Annotated[
        str | None, typer.Argument(metavar="HEAD[:PORT]", help="The pool's address, or the name of one known already.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help=_NAME)] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="SHA256", help="Of the pool's certificate, as 'gpupool up' says it."),
    ] = None,
    code: Annotated[
        str | None, typer.Option("--code", metavar="CODE", help="From 'gpupool login-code', in place of a token.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Use the pool of this machine again; forget nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Use a pool over the network: run, submit, shell and all others go there until you log out.

    The token comes from GPUPOOL_TOKEN, or is asked for (from standard input when that is no terminal); make one with
    'gpupool token create' on the pool's machine. Without an address: the pools that you know. GPUPOOL_POOL=NAME chooses
    another for one command, GPUPOOL_POOL=local that of this machine. The login learns all heads of the pool, and the
    one that leads is used.
    """
    from gpupool.client import logins

    known = logins.known()
    if local:
        logins.save(known | {"current": None})
        return 0
    if head is None:
        return _listing(known, as_json=as_json)
    if head in known["pools"] and name is None:
        logins.save(known | {"current": head})
        tell(f"using {head} ({known['pools'][head]['url']})")
        return 0
    chosen, entry = _new(head, name, fingerprint, code)
    pool, gate = _pool_of(entry)
    said = pool.get("whoami")  # nothing is kept that does not work
    _save({"current": chosen, "pools": known["pools"] | {chosen: entry}})
    tell(f"logged in to {chosen} ({entry['url']}) as {said['user']}, {said['role']}")
    _learn_heads(pool, gate)
    return 0


def logout(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The pool; the one in use otherwise.")] = None,
    *,
    everywhere: Annotated[bool, typer.Option("--all", help="All pools.")] = False,
) -> int:
    """Forget a pool and its token here; the token itself stays good ('gpupool token revoke')."""
    from gpupool.client import logins

    known = logins.known()
    pools: dict[str, Any] = known["pools"]
    gone = set(pools) if everywhere else {name or known["current"]}
    if not gone <= set(pools):
        raise GpupoolError(ErrorCode.NOT_FOUND, "You are not logged in to such a pool.", "See 'gpupool login'.")
    current = None if known["current"] in gone else known["current"]
    _save({"current": current, "pools": {key: pool for key, pool in pools.items() if key not in gone}})
    for one in sorted(gone):
        tell(f"logged out of {one}")
    return 0


def _listing(known: dict[str, Any], *, as_json: bool) -> int:
    pools: list[dict[str, Any]] = [
        {"name": key, "url": pool["url"], "current": key == known["current"], "heads": _heads(pool)}
        for key, pool in known["pools"].items()
    ]
    if as_json:
        show_json({"pools": pools})
    elif not pools:
        tell("you are logged in to no pool; 'gpupool login HEAD' does that")
    for pool in [] if as_json else pools:
        show([f"{'*' if pool['current'] else ' '} {pool['name']:<20} {pool['url']}"])
        show(
            f"    head {head['name']:<15} {head['url']}{'  used last' if head['last'] else ''}"
            for head in pool["heads"]
        )
    return 0


def _heads(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The heads that a login has learnt."""
    from gpupool.client import heads, trust

    learnt = heads.read(heads.kept_for(_endpoint(entry))) or heads.Learnt()
    return [
        {
            "name": head.name,
            "url": head.url,
            "fingerprint": trust.fingerprint_of_pem(head.certificate),
            "last": learnt.last == head.url,
        }
        for head in learnt.heads
    ]


def _endpoint(entry: dict[str, Any]) -> TlsEndpoint:
    from gpupool.client.endpoint import TlsEndpoint

    return TlsEndpoint(entry["url"], entry["token"], certificate=entry.get("certificate"), login=True)


def _save(known: dict[str, Any]) -> None:
    """Keep the logins, and the heads of no others."""
    from gpupool.client import heads, logins

    logins.save(known)
    heads.forget_all_but(_endpoint(entry) for entry in known["pools"].values())


def _learn_heads(pool: Pool, gate: RemoteGate) -> None:
    """Which other heads there are; a pool of an older release does not say."""
    from gpupool.client import heads

    try:
        gate.ways.take(pool.get(heads.TARGET.removeprefix("/v1/")))
    except (GpupoolError, ValueError):
        return
    if names := ", ".join(f"{head.name} ({head.url})" for head in gate.ways.learnt.heads):
        tell(f"it has several heads, of which the one that leads is used: {names}")


def _new(head: str, name: str | None, fingerprint: str | None, code: str | None) -> tuple[str, dict[str, Any]]:
    host, port = _address(head)
    secret, _, within = (code or "").partition(".")
    certificate = _trusted(host, port, fingerprint or within or None)
    shown = f"[{host}]" if ":" in host else host
    url = f"https://{shown}:{port}"
    token = _redeemed(url, certificate, secret) if code else _token()
    return name or host, {"url": url, "token": token, "certificate": certificate}


def _redeemed(url: str, certificate: str | None, code: str) -> str:
    """The token that a code is good for."""
    pool, _ = _pool_of({"url": url, "token": "", "certificate": certificate})
    return str(pool.post("logins", {"code": code})["secret"])


def login_code(
    *,
    user: Annotated[str | None, typer.Option("--user", help="For this user; yourself otherwise.")] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="How long the login is good.")] = "30d",
    as_json: AsJson = False,
) -> int:
    """Make a code that somebody can log in with from another machine, once and within ten minutes.

    It tells that machine the pool's certificate as well, so nobody has to compare fingerprints.
    """
    from gpupool.cli.pool import open_pool
    from gpupool.domain.units import parse_duration_s

    pool = open_pool()
    body = {"expires_in_s": parse_duration_s(expires)} | ({"user": user} if user else {})
    made = pool.post("login-codes", body)
    listen = pool.get("pool").get("listen") if pool.gate.direct else pool.gate.url.removeprefix("https://")
    code, address = made["code"], listen or "HEAD:PORT"
    if listen:
        code = f"{code}.{_fingerprint(listen) if pool.gate.direct else _fingerprint_there(pool.gate)}"
    if as_json:
        show_json(made | {"code": code, "address": listen})
        return 0
    if not listen:
        tell("this pool listens on no network; start it with 'gpupool up --listen :8443 --tls-self-signed'")
    host, _, port = address.rpartition(":")
    shown = f"{socket.getfqdn()}:{port}" if host in {"0.0.0.0", "[::]", ""} else address  # noqa: S104 - what was asked
    tell("on the other machine, once, within ten minutes:")
    show([f"gpupool login {shown} --code {code}"])
    return 0


def _fingerprint(listen: str) -> str:
    """Of the certificate of the pool on this machine."""
    from gpupool.client import trust

    host, _, port = listen.rpartition(":")
    host = "127.0.0.1" if host in {"0.0.0.0", ""} else "::1" if host == "[::]" else host.strip("[]")  # noqa: S104
    return trust.fingerprint_of(trust.certificate_at(host, int(port)))


def _fingerprint_there(gate: Any) -> str:
    """Of the certificate of the head that made the code."""
    from gpupool.client import trust

    way = gate.ways.current
    return trust.fingerprint_of_pem(way.certificate) if way.certificate else _verified(way)


def _verified(way: TlsEndpoint) -> str:
    """Of a certificate that an authority vouches for."""
    import http.client

    from gpupool.client import trust

    host, port = way.address
    connection = http.client.HTTPSConnection(host, port, timeout=trust.CONNECT_S, context=way.context())
    try:
        connection.connect()
        return trust.fingerprint_of(connection.sock.getpeercert(binary_form=True) or b"")
    finally:
        connection.close()


def _address(head: str) -> tuple[str, int]:
    text = head.removeprefix("https://").rstrip("/")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.endswith("]")):
        host, port = text, str(DEFAULT_PORT)
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host or head.startswith("http://"):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{head[:80]}' is not the address of a pool.", "Write HOST or HOST:PORT."
        )
    return host, int(port)


def _trusted(host: str, port: int, fingerprint: str | None) -> str | None:
    """The certificate (PEM) to trust from now on; None where one of the system's authorities vouches for it."""
    from gpupool.client import trust

    certificate = trust.certificate_at(host, port)
    found = trust.fingerprint_of(certificate)
    if fingerprint is not None:
        if not trust.same_fingerprint(certificate, fingerprint):
            raise GpupoolError(
                ErrorCode.UNAUTHENTICATED,
                f"The server at {host}:{port} has another certificate (SHA-256 {found}).",
                "Ask the administrator; do not go on if nobody changed the certificate.",
            )
    elif trust.vouched_for(host, port):
        return None
    else:
        _ask_whether(host, port, found)
    return ssl.DER_cert_to_PEM_cert(certificate)


def _ask_whether(host: str, port: int, found: str) -> None:
    """A certificate that nobody vouches for is the pool's only if a person says so."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        tell(f"no authority vouches for {host}:{port}; its certificate has the SHA-256\n  {found}")
        sys.stderr.write("Is that what the pool's administrator says? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return
    raise GpupoolError(
        ErrorCode.UNAUTHENTICATED,
        f"No authority vouches for {host}:{port} (certificate SHA-256 {found}).",
        "Compare that with what 'gpupool up' says on the pool's machine, and give it with --fingerprint.",
    )


def _token() -> str:
    if token := os.environ.get("GPUPOOL_TOKEN"):
        return token
    if sys.stdin.isatty():
        import getpass

        token = getpass.getpass("Token: ").strip()
    else:
        token = sys.stdin.readline(4096).strip()
    if not token:
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED,
            "A token is needed.",
            "Make one with 'gpupool token create' on the pool's machine.",
        )
    return token


def _pool_of(entry: dict[str, Any]) -> tuple[Pool, RemoteGate]:
    from gpupool.cli.pool import Pool
    from gpupool.cli.remote import RemoteGate
    from gpupool.client.locate import Remote

    gate = RemoteGate(Remote(entry["url"], entry["token"], None, entry["certificate"], login=True))
    return Pool(gate), gate
