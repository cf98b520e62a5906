"""Active checks of idle GPUs."""
