"""Labels that the pool itself sets. Imports nothing, because everyday commands use it."""

from __future__ import annotations

APPLIED_LABEL = "gpupool/applied"  # of a service that was made from a manifest: a digest of the manifest
