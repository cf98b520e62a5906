"""What nodes measure: pulled once a second, kept for ten minutes, rolled up to minutes and hours in the store.

``service`` pulls and answers; ``rings`` has the last ten minutes; ``tallies`` adds looks up to rows; ``series`` makes
columns over time of either.
"""

from gpupool.services.telemetry.service import TelemetryService

__all__ = ["TelemetryService"]
