"""The template of a pod: its program, environment, GPUs, volumes and node selection."""
