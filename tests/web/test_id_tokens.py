"""Validation of ID tokens: each possible error alone."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from typing import Any

import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, RSAKey

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.identity import ProviderSettings
from gpupool.web import oidc

OURS, FORGED = RSAKey.generate_key(2048, {"kid": "k"}), RSAKey.generate_key(2048, {"kid": "k"})
CURVE = ECKey.generate_key("P-256", {"kid": "e"})
SETTINGS = ProviderSettings("https://login.example", "gpupool", "https://gpu1.example:8443")


def provider() -> oidc.Provider:
    """Return a provider whose keys are known."""
    made = oidc.Provider(SETTINGS)
    public = [OURS.as_dict(private=False), CURVE.as_dict(private=False)]
    keys = KeySet.import_key_set({"keys": public})  # type: ignore[arg-type]
    made._known = oidc._Metadata({}, keys, time.time())
    return made


def believed(token: str, nonce: str = "n1") -> dict[str, Any]:
    return asyncio.run(provider()._checked({"id_token": token}, nonce))


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    whole = {
        "iss": SETTINGS.issuer,
        "sub": "1",
        "aud": "gpupool",
        "exp": now + 300,
        "iat": now,
        "nonce": "n1",
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def signed(key: Any = OURS, alg: str = "RS256", **changes: Any) -> str:
    return jwt.encode({"alg": alg, "kid": key.kid or "k"}, claims(**changes), key, algorithms=[alg])


def test_valid_id_token_is_accepted_with_clock_skew_of_a_minute() -> None:
    assert believed(signed())["sub"] == "1"
    assert believed(signed(CURVE, "ES256"))["sub"] == "1"
    assert believed(signed(aud=["gpupool"]))["sub"] == "1"
    now = int(time.time())
    assert believed(signed(exp=now - oidc.SKEW_S + 10))["sub"] == "1"
    assert believed(signed(iat=now + oidc.SKEW_S - 10))["sub"] == "1"


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.example"},
        {"iss": None},
        {"aud": "another"},
        {"aud": None},
        {"aud": ["another", "gpupool"], "azp": "another"},
        {"sub": None},
        {"exp": 1},
        {"exp": None},
        {"exp": int(time.time()) - 120},
        {"iat": None},
        {"nbf": int(time.time()) + 3600},
        {"nonce": "n2"},
        {"nonce": None},
    ],
)
def test_invalid_id_token_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((JoseError, ValueError)):
        believed(signed(**changes))


def test_id_token_with_wrong_signature_is_refused() -> None:
    header, body, seal = signed().split(".")
    others = [
        signed(FORGED),
        _by_public_key(body),
        f"eyJhbGciOiJub25lIn0.{body}.",
        f"{header}.{body}.",
        f"{header}.{body[:-4]}AAAA.{seal}",
        "x",
        "",
    ]
    for token in others:
        with pytest.raises((JoseError, ValueError)):
            believed(token)


def _by_public_key(body: str) -> str:
    """Signed with the public key taken for a shared secret."""
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k"}').rstrip(b"=")
    text = header + b"." + body.encode()
    seal = hmac.new(OURS.as_pem(private=False), text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(seal).rstrip(b"=")).decode()


def test_forged_sign_in_cookie_is_refused() -> None:
    here = provider()
    trip = oidc.PendingSignIn("s", "n", "v", "/queue", time.time())
    assert here._opened(here._sealed(trip)) == trip
    text, _, seal = here._sealed(trip).partition(".")
    other = provider()._sealed(trip)
    late = here._sealed(oidc.PendingSignIn("s", "n", "v", "/", time.time() - 3600))
    for cookie in ("", ".", text, f"{text}.", f"{text}x.{seal}", f"{text}.{seal[:-1]}", other, late, "ü.ü"):
        with pytest.raises(GpupoolError) as refused:
            here._opened(cookie)
        assert refused.value.code is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "url", ["http://login.example/token", "ftp://login.example", "//login.example", "file:///etc/passwd"]
)
def test_secrets_are_sent_over_tls_only(url: str) -> None:
    with pytest.raises(ValueError, match="TLS"):
        oidc._checked_url(url)
