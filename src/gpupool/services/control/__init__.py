"""The control loop: the engine as the single writer, scheduling, and reconciliation with the nodes."""
