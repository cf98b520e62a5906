"""OpenID Connect: the authorisation code flow with PKCE, state and nonce, and the checks of the response.

Authlib implements OAuth and the claims of ID tokens; joserfc checks signatures. The state between the two requests
of a browser is stored only in a signed cookie of that browser.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import structlog
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.identity import SIGN_IN_TIMEOUT_S, Identity, ProviderSettings, identify

SKEW_S = 60  # between our clock and the provider's
_METADATA_LIFE_S = 3600.0
_MIN_KEY_REFRESH_S = 60.0  # a token with an unknown key makes us fetch the keys again, at most this often
_TIMEOUT_S = 10.0
_RETRY_DELAY_S = 5.0  # pause after a provider did not answer
_MAX_RESPONSE_BYTES = 1024 * 1024
# Signatures that need the provider's private key; with "none" or a shared secret others could make them.
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

log = structlog.get_logger("gpupool.oidc")


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """State that a browser must return with from the provider, and the page it goes to then."""

    state: str
    nonce: str
    verifier: str
    wanted: str
    began_at: float


@dataclass(slots=True)
class _Metadata:
    """Metadata and keys of the provider."""

    document: dict[str, Any]
    keys: KeySet
    at: float


class Provider:
    """One provider. Methods raise ``GpupoolError``: PROVIDER_UNREACHABLE, UNAUTHENTICATED, FORBIDDEN."""

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings
        self.title = settings.title
        self._known: _Metadata | None = None
        self._asking = asyncio.Lock()
        self._not_before = 0.0
        self._key = secrets.token_bytes(32)  # sign-ins in progress start again after a restart

    async def begin(self, wanted: str) -> tuple[str, str]:
        """Return the provider URL for a browser, and the cookie with the sign-in state."""
        known = await self._discover()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        trip = PendingSignIn(state, nonce, verifier, wanted, time.time())
        async with self._client() as client:
            url, _ = client.create_authorization_url(
                known.document["authorization_endpoint"],
                state=trip.state,
                nonce=trip.nonce,
                code_verifier=trip.verifier,
            )
        return url, self._sealed(trip)

    async def finish(self, query: Mapping[str, str], cookie: str) -> tuple[Identity, str]:
        """Return the identity that signed in, and the page that it requested."""
        trip = self._opened(cookie)
        if not hmac.compare_digest(query.get("state", "").encode(), trip.state.encode()):
            raise _sign_in_error("This sign-in was started in another browser or tab.")
        if query.get("iss", self.settings.issuer) != self.settings.issuer:
            raise _sign_in_error("The response is not from the configured provider.")
        if "error" in query or not query.get("code"):
            raise _sign_in_error(f"The provider did not sign you in ({_printable(query.get('error', 'no code'))}).")
        claims = await self._claims(query["code"], trip)
        return identify(claims, self.settings, _identity_key(self.settings.issuer, str(claims["sub"]))), trip.wanted

    # Response of the provider

    async def _claims(self, code: str, trip: PendingSignIn) -> dict[str, Any]:
        known = await self._discover()
        try:
            async with self._client() as client:
                token = await client.fetch_token(
                    known.document["token_endpoint"],
                    code=code,
                    code_verifier=trip.verifier,
                    grant_type="authorization_code",
                )
                claims = await self._checked(token, trip.nonce)
                return claims | await self._more(client, known, claims)
        except (AuthlibBaseError, JoseError, KeyError, ValueError, TypeError) as error:
            log.warning("sign-in with the provider failed", why=_printable(str(error)), kind=type(error).__name__)
            raise _sign_in_error("The provider's response could not be verified.") from error
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error

    async def _checked(self, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """Return the claims of the ID token after checking signature, issuer, audience, time and nonce."""
        read = await self._decode(str(token["id_token"]))
        expected = {"iss": {"essential": True, "value": self.settings.issuer}, "sub": {"essential": True}}
        expected |= {"aud": {"essential": True, "value": self.settings.client_id}, "exp": {"essential": True}}
        asked = {"nonce": nonce, "client_id": self.settings.client_id, "access_token": token.get("access_token")}
        claims = CodeIDToken(read.claims, read.header, expected, asked)
        claims.validate(now=int(time.time()), leeway=SKEW_S)
        return dict(claims)

    async def _decode(self, id_token: str) -> jwt.Token:
        known = await self._discover()
        try:
            return jwt.decode(id_token, known.keys, algorithms=_ALGORITHMS)
        except (JoseError, ValueError):
            if time.time() - known.at < _MIN_KEY_REFRESH_S:
                raise
        known = await self._discover(again=True)  # the provider may have changed its keys
        return jwt.decode(id_token, known.keys, algorithms=_ALGORITHMS)

    async def _more(self, client: AsyncOAuth2Client, known: _Metadata, claims: Mapping[str, Any]) -> dict[str, Any]:
        """Return claims of the userinfo endpoint if the ID token lacks claims that the role rules use."""
        wanted = {self.settings.user_claim, *(rule.claim for rule in self.settings.roles)}
        wanted |= {"email", "email_verified"} if self.settings.allowed_domains else set()
        url = known.document.get("userinfo_endpoint")
        if wanted <= claims.keys() or not url:
            return {}
        answer = await client.get(_checked_url(str(url)))
        answer.raise_for_status()
        found = answer.json()
        if not isinstance(found, dict) or found.get("sub") != claims["sub"]:
            raise ValueError("the user info belongs to another user")
        return {name: value for name, value in found.items() if name not in claims}

    # The provider

    async def _discover(self, *, again: bool = False) -> _Metadata:
        async with self._asking:  # one request to the provider at a time
            if self._known is None or again or time.time() - self._known.at > _METADATA_LIFE_S:
                if time.monotonic() < self._not_before:
                    raise self._no_answer()
                try:
                    self._known = await self._asked()
                except (httpx2.HTTPError, JoseError, KeyError, ValueError, TypeError) as error:
                    self._not_before = time.monotonic() + _RETRY_DELAY_S
                    raise self._unreachable(error) from error
            return self._known

    async def _asked(self) -> _Metadata:
        async with self._http() as http:
            document = await _json(http, f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
            if document["issuer"] != self.settings.issuer:
                raise ValueError("it calls itself by another name")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                _checked_url(document[name])
            keys = KeySet.import_key_set(await _json(http, document["jwks_uri"]))  # type: ignore[arg-type]  # checked there
        return _Metadata(document, keys, time.time())

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=self._verify(), follow_redirects=False)

    def _client(self) -> AsyncOAuth2Client:
        settings = self.settings
        return AsyncOAuth2Client(
            client_id=settings.client_id,
            client_secret=settings.client_secret or None,
            token_endpoint_auth_method=self._method(),
            scope=" ".join(settings.scopes),
            redirect_uri=settings.redirect_uri,
            code_challenge_method="S256",
            timeout=_TIMEOUT_S,
            verify=self._verify(),
            follow_redirects=False,
        )

    def _method(self) -> str:
        if not self.settings.client_secret:
            return "none"
        known = self._known.document if self._known else {}
        offered = known.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return "client_secret_basic" if "client_secret_basic" in offered else "client_secret_post"

    def _verify(self) -> Any:
        import ssl

        return ssl.create_default_context(cafile=self.settings.ca_file) if self.settings.ca_file else True

    def _unreachable(self, error: Exception) -> GpupoolError:
        why = _printable(f"{type(error).__name__}: {error}")
        log.warning("provider cannot be used", issuer=self.settings.issuer, why=why)
        return self._no_answer()

    def _no_answer(self) -> GpupoolError:
        return GpupoolError(
            ErrorCode.PROVIDER_UNREACHABLE,
            f"{self.title} cannot be reached or does not respond as an OpenID provider.",
            "Try again later, or sign in with a token.",
        )

    # The sign-in cookie

    def _sealed(self, trip: PendingSignIn) -> str:
        text = base64.urlsafe_b64encode(json.dumps(asdict(trip)).encode()).decode()
        return f"{text}.{self._seal(text)}"

    def _opened(self, cookie: str) -> PendingSignIn:
        text, _, seal = cookie.partition(".")
        if not hmac.compare_digest(seal.encode(), self._seal(text).encode()):
            raise _sign_in_error("This sign-in was started in another browser or too long ago.")
        trip = PendingSignIn(**json.loads(base64.urlsafe_b64decode(text)))
        if not 0 <= time.time() - trip.began_at < SIGN_IN_TIMEOUT_S:
            raise _sign_in_error("This sign-in took too long.")
        return trip

    def _seal(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


async def _json(http: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    async with http.stream("GET", _checked_url(url)) as answer:
        answer.raise_for_status()
        data = b""
        async for part in answer.aiter_bytes():
            data += part
            if len(data) > _MAX_RESPONSE_BYTES:
                raise ValueError("it says too much")
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("it lacks required fields")  # noqa: TRY004 - all of these are one error to the caller
    return found


def _checked_url(url: str) -> str:
    """Return ``url`` if secrets may be sent to it: TLS or the loopback address. Raise ValueError otherwise."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError("it uses an address without TLS")
    return url


def _identity_key(issuer: str, subject: str) -> str:
    """Return ``ISSUER-SUBJECT`` as hashes, at most 41 characters."""
    of_issuer, of_subject = (hashlib.sha256(text.encode()).hexdigest() for text in (issuer, subject))
    return f"{of_issuer[:8]}-{of_subject[:32]}"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:120]


def _sign_in_error(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.UNAUTHENTICATED, sentence, "Start again from the sign-in page.")
