"""Stands in for a control plane that takes long to start.

``slow_control_plane.py SECONDS WORK MARKS SOCKET``: for some seconds it works (``cpu``), goes through phases without
using a processor (``phases``) or does nothing (``idle``); then it answers as the other stand-in does.
"""

import runpy
import sys
import time
from pathlib import Path

from gpupool.daemon.process.phases import StartPhase, enter_phase

seconds, work = float(sys.argv[1]), sys.argv[2]
run_dir = str(Path(sys.argv[4]).parent)
enter_phase(run_dir, StartPhase.READING)
sys.stdout.write("slow start begins\n")
sys.stdout.flush()
until = time.monotonic() + seconds
while (left := until - time.monotonic()) > 0:
    if work == "cpu":
        sum(range(200_000))
        time.sleep(0.02)
    elif work == "phases":
        time.sleep(0.1)
        enter_phase(run_dir, StartPhase.LISTENING if int(left * 10) % 2 else StartPhase.READING)
    else:
        time.sleep(min(left, 0.5))
sys.argv = ["control_plane.py", *sys.argv[3:]]
runpy.run_path(str(Path(__file__).with_name("control_plane.py")), run_name="__main__")
