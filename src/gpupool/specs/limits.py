"""Bounds on everything that comes from outside."""

from __future__ import annotations

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DOCUMENTS = 1000
MAX_NODES = 400_000  # values in one file or request, those that aliases repeat counted again
MAX_DEPTH = 50
MAX_INTEGER = 2**63 - 1

MAX_ARGV_BYTES = 1024 * 1024
MAX_ENV_BYTES = 1024 * 1024
MAX_ENV_VARIABLES = 4096
MAX_LABELS = 64
MAX_LABEL_VALUE = 255
MAX_MODELS = 64
MAX_DEPENDENCIES = 256
MAX_PATH = 4096
MAX_REFERENCE = 128

MAX_GPUS = 1024
MAX_REPLICAS = 10_000
MAX_ROLES = 16
MAX_MEMBERS = 2048  # that a framework tells of each other: each is told of all
MAX_PROCESSES = 1024
MAX_BACKOFF = 1000
MAX_PARAMETERS = 64
MAX_VALUE_LENGTH = 65_536
MAX_CPUS = 100_000
MAX_MEMORY_MIB = 1 << 30  # a PiB
MAX_TERMINAL = 10_000
MAX_PRIORITY = 1000
