"""Services: servers with replicas, a stable address, readiness, scaling and updates."""
