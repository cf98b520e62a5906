"""Delivery of messages by SMTP and webhooks. Implements ``services.ports.courier.Courier``."""

from gpupool.messaging.courier import NetworkCourier

__all__ = ["NetworkCourier"]
