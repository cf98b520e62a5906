"""The start of a file server (SFTP) in a workload.

The server of OpenSSH is used where the workload has it. Otherwise ``sftp_server.py`` is sent over standard input to the
workload's Python. The first byte of output says which of the two it is.
"""

from __future__ import annotations

from pathlib import Path

HAS_SERVER = b"S"
NEEDS_SERVER = b"P"

SERVER = (Path(__file__).parent / "sftp_server.py").read_bytes()
_PLACES = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec", "/usr/lib/misc")
_READ_SERVER = f"import sys;exec(compile(sys.stdin.buffer.read({len(SERVER)}),'sftp_server.py','exec'))"

# A POSIX shell runs this. Paths of clients never become part of it.
COMMAND = (
    f"for d in {' '.join(_PLACES)}; do "
    f'if [ -x "$d/sftp-server" ]; then printf {HAS_SERVER.decode()}; exec "$d/sftp-server"; fi; done; '
    "for p in python3 python; do if command -v $p >/dev/null; then "
    f'printf {NEEDS_SERVER.decode()}; exec $p -c "{_READ_SERVER}"; fi; done; '
    "echo 'gpupool: file transfer needs sftp-server or Python 3 in the workload' >&2; exit 127"
)
