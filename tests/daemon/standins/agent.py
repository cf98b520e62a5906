"""Stands in for the node agent: leaves a mark and waits for a signal to end."""

import os
import signal
import sys
from pathlib import Path

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with Path(sys.argv[1]).open("a") as file:
    file.write(f"agent {os.getpid()}\n")
os.write(1, b"the agent is up\n")
signal.sigwait({signal.SIGTERM})
