"""Headers that every page carries."""

from __future__ import annotations

# Nothing from elsewhere, nothing inline, nobody may frame us; figures are SVG in the page, so no data: images either.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

PAGE_HEADERS: dict[str, str] = {
    "cache-control": "no-store",
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}
