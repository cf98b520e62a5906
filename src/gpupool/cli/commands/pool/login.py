"""``login``, ``logout`` and ``login-code``: pools over the network, each with a name."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from typing import TYPE_CHECKING, Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, command
from gpupool.cli.output import notify, show, show_json
from gpupool.domain.errors import ErrorCode, GpupoolError

if TYPE_CHECKING:
    from gpupool.cli.transport.pool import PoolClient
    from gpupool.cli.transport.remote import RemoteTransport
    from gpupool.client.transport.endpoint import TlsEndpoint

DEFAULT_PORT = 8443
_NAME = "Set your name for the pool; default: the host name."


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
    command(app, "gpupool login-code", "gpupool login-code --user ada --expires 90d", name="login-code")(login_code)


def login(
    *,
    head: Annotated[
        str | None, typer.Argument(metavar="HEAD[:PORT]", help="The pool's address, or the name of a known pool.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help=_NAME)] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="SHA256", help="Require this certificate, as printed by 'gpupool up'."),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option("--code", metavar="CODE", help="Use a code of 'gpupool login-code' instead of a token."),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Use the pool of this machine again; keep the logins.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Log in to a pool over the network: run, submit, shell and all other commands use it until you log out.

    The token comes from GPUPOOL_TOKEN, or is read from the terminal or standard input; create one with 'gpupool token
    create' on the pool's machine. Without an address it lists the known pools. GPUPOOL_POOL=NAME selects another pool
    for one command, GPUPOOL_POOL=local the pool of this machine. The login learns all heads of the pool, and uses the
    one that leads.
    """
    from gpupool.client import logins

    known = logins.load_or_empty()
    if local:
        logins.save(known | {"current": None})
        return 0
    if head is None:
        return _listing(known, as_json=as_json)
    if head in known["pools"] and name is None:
        logins.save(known | {"current": head})
        notify(f"using {head} ({known['pools'][head]['url']})")
        return 0
    chosen, entry = _create_login(head, name, fingerprint, code)
    pool, transport = _pool_of(entry)
    user = pool.get("whoami")  # fails before a login that does not work is saved
    _save({"current": chosen, "pools": known["pools"] | {chosen: entry}})
    notify(f"logged in to {chosen} ({entry['url']}) as {user['user']}, {user['role']}")
    _learn_heads(pool, transport)
    return 0


def logout(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The pool; default: the one in use.")] = None,
    *,
    everywhere: Annotated[bool, typer.Option("--all", help="Log out of all pools.")] = False,
) -> int:
    """Delete the login of a pool on this machine; the token stays valid ('gpupool token revoke')."""
    from gpupool.client import logins

    known = logins.load_or_empty()
    pools: dict[str, Any] = known["pools"]
    gone = set(pools) if everywhere else {name or known["current"]}
    if not gone <= set(pools):
        raise GpupoolError(
            ErrorCode.NOT_FOUND, "You are not logged in to this pool.", "List your pools with 'gpupool login'."
        )
    current = None if known["current"] in gone else known["current"]
    _save({"current": current, "pools": {key: pool for key, pool in pools.items() if key not in gone}})
    for one in sorted(gone):
        notify(f"logged out of {one}")
    return 0


def _listing(known: dict[str, Any], *, as_json: bool) -> int:
    pools: list[dict[str, Any]] = [
        {"name": key, "url": pool["url"], "current": key == known["current"], "heads": _heads(pool)}
        for key, pool in known["pools"].items()
    ]
    if as_json:
        show_json({"pools": pools})
    elif not pools:
        notify("you are not logged in to a pool; log in with 'gpupool login HEAD'")
    for pool in [] if as_json else pools:
        show([f"{'*' if pool['current'] else ' '} {pool['name']:<20} {pool['url']}"])
        show(
            f"    head {head['name']:<15} {head['url']}{'  used last' if head['last'] else ''}"
            for head in pool["heads"]
        )
    return 0


def _heads(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the heads that a login has learned."""
    from gpupool.client.transport import heads, tls_pinning

    learnt = heads.load_heads(heads.heads_file(_endpoint(entry))) or heads.HeadList()
    return [
        {
            "name": head.name,
            "url": head.url,
            "fingerprint": tls_pinning.fingerprint_of_pem(head.certificate),
            "last": learnt.last == head.url,
        }
        for head in learnt.heads
    ]


def _endpoint(entry: dict[str, Any]) -> TlsEndpoint:
    from gpupool.client.transport.endpoint import TlsEndpoint

    return TlsEndpoint(entry["url"], entry["token"], certificate=entry.get("certificate"), login=True)


def _save(known: dict[str, Any]) -> None:
    """Save the logins, and delete the head lists of other pools."""
    from gpupool.client import logins
    from gpupool.client.transport import heads

    logins.save(known)
    heads.delete_other_lists(_endpoint(entry) for entry in known["pools"].values())


def _learn_heads(pool: PoolClient, transport: RemoteTransport) -> None:
    """Store the pool's other heads; a pool of an older release does not list them."""
    from gpupool.client.transport import heads

    try:
        transport.heads.store_answer(pool.get(heads.HEADS_PATH.removeprefix("/v1/")))
    except (GpupoolError, ValueError):
        return
    if names := ", ".join(f"{head.name} ({head.url})" for head in transport.heads.head_list.heads):
        notify(f"it has several heads; the leader is used: {names}")


def _create_login(head: str, name: str | None, fingerprint: str | None, code: str | None) -> tuple[str, dict[str, Any]]:
    host, port = _address(head)
    secret, _, within = (code or "").partition(".")
    certificate = _choose_certificate(host, port, fingerprint or within or None)
    shown = f"[{host}]" if ":" in host else host
    url = f"https://{shown}:{port}"
    token = _redeem_code(url, certificate, secret) if code else _token()
    return name or host, {"url": url, "token": token, "certificate": certificate}


def _redeem_code(url: str, certificate: str | None, code: str) -> str:
    """Exchange a code for a token."""
    pool, _ = _pool_of({"url": url, "token": "", "certificate": certificate})
    return str(pool.post("logins", {"code": code})["secret"])


def login_code(
    *,
    user: Annotated[str | None, typer.Option("--user", help="Create it for this user; default: you.")] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="Set the lifetime of the login.")] = "30d",
    as_json: AsJson = False,
) -> int:
    """Create a code to log in from another machine, once and within ten minutes.

    The code contains the fingerprint of the pool's certificate, so that users do not have to compare it.
    """
    from gpupool.cli.transport.pool import open_pool
    from gpupool.domain.units import parse_duration_s

    pool = open_pool()
    body = {"expires_in_s": parse_duration_s(expires)} | ({"user": user} if user else {})
    made = pool.post("login-codes", body)
    seen = pool.get("pool") if pool.transport.direct else {}
    listen = seen.get("listen") if pool.transport.direct else pool.transport.url.removeprefix("https://")
    code, address = made["code"], _public_address(listen, seen.get("address")) if listen else "HEAD:PORT"
    if listen:
        code = f"{code}.{_local_fingerprint(listen) if pool.transport.direct else _remote_fingerprint(pool.transport)}"
    if as_json:
        show_json(made | {"code": code, "address": address if listen else None})
        return 0
    if not listen:
        notify("this pool does not listen on a network; start it with 'gpupool up --listen :8443 --tls-self-signed'")
    notify("run on the other machine, once, within ten minutes:")
    show([f"gpupool login {address} --code {code}"])
    return 0


def _public_address(listen: str, given: str | None) -> str:
    """Return the address at which other machines reach a pool.

    A pool that listens on all addresses is reached at --address, else at the host name. Other machines may not be able
    to resolve a host name, so a configured address comes first.
    """
    host, _, port = listen.rpartition(":")
    if host not in {"0.0.0.0", "[::]", ""}:  # noqa: S104 - compared, not bound
        return listen
    own = given or socket.getfqdn()
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"


def _local_fingerprint(listen: str) -> str:
    """Return the certificate's fingerprint of the pool on this machine."""
    from gpupool.client.transport import tls_pinning

    host, _, port = listen.rpartition(":")
    host = "127.0.0.1" if host in {"0.0.0.0", ""} else "::1" if host == "[::]" else host.strip("[]")  # noqa: S104
    return tls_pinning.fingerprint_of(tls_pinning.fetch_certificate(host, int(port)))


def _remote_fingerprint(transport: Any) -> str:
    """Return the certificate's fingerprint of the head that created the code."""
    from gpupool.client.transport import tls_pinning

    endpoint = transport.heads.current
    return (
        tls_pinning.fingerprint_of_pem(endpoint.certificate)
        if endpoint.certificate
        else _verified_fingerprint(endpoint)
    )


def _verified_fingerprint(endpoint: TlsEndpoint) -> str:
    """Return the fingerprint of a certificate that an authority has verified."""
    import http.client

    from gpupool.client.transport import tls_pinning

    host, port = endpoint.address
    connection = http.client.HTTPSConnection(
        host, port, timeout=tls_pinning.CONNECT_TIMEOUT_S, context=endpoint.context()
    )
    try:
        connection.connect()
        return tls_pinning.fingerprint_of(connection.sock.getpeercert(binary_form=True) or b"")
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


def _choose_certificate(host: str, port: int, fingerprint: str | None) -> str | None:
    """Return the certificate (PEM) to pin, or None if one of the system's authorities verifies it."""
    from gpupool.client.transport import tls_pinning

    certificate = tls_pinning.fetch_certificate(host, port)
    found = tls_pinning.fingerprint_of(certificate)
    if fingerprint is not None:
        if not tls_pinning.matches_fingerprint(certificate, fingerprint):
            raise GpupoolError(
                ErrorCode.UNAUTHENTICATED,
                f"The server at {host}:{port} has another certificate (SHA-256 {found}).",
                "Ask the administrator whether the certificate was changed; do not continue otherwise.",
            )
    elif tls_pinning.is_trusted_by_system(host, port):
        return None
    else:
        _confirm_certificate(host, port, found)
    return ssl.DER_cert_to_PEM_cert(certificate)


def _confirm_certificate(host: str, port: int, found: str) -> None:
    """Ask the user to confirm a certificate that no authority verifies. Raises ``GpupoolError``."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        notify(f"no authority verifies {host}:{port}; its certificate has the SHA-256\n  {found}")
        sys.stderr.write("Is this the fingerprint from the pool's administrator? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return
    raise GpupoolError(
        ErrorCode.UNAUTHENTICATED,
        f"No authority verifies {host}:{port} (certificate SHA-256 {found}).",
        "Compare it with the one that 'gpupool up' prints on the pool's machine, and give it with --fingerprint.",
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
            "A token is required.",
            "Create one with 'gpupool token create' on the pool's machine.",
        )
    return token


def _pool_of(entry: dict[str, Any]) -> tuple[PoolClient, RemoteTransport]:
    from gpupool.cli.transport.pool import PoolClient
    from gpupool.cli.transport.remote import RemoteTransport
    from gpupool.client.discovery import Remote

    transport = RemoteTransport(Remote(entry["url"], entry["token"], None, entry["certificate"], login=True))
    return PoolClient(transport), transport
