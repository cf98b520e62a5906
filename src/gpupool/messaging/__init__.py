"""How messages leave the pool: SMTP and webhooks. Implements ``services.warnings.courier.Courier``."""

from gpupool.messaging.courier import NetworkCourier

__all__ = ["NetworkCourier"]
