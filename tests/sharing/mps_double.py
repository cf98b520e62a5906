"""A stand-in for ``nvidia-cuda-mps-control``: it daemonizes, starts a server, takes ``quit``, keeps a pipe folder.

Written for /bin/sh, which every user may execute.
"""

from __future__ import annotations

from pathlib import Path

_SCRIPT = """\
#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -d ]; then
    {refuse}
    mkfifo "$pipe/control" || exit 1
    echo "uid=$(id -u) gpu=$CUDA_VISIBLE_DEVICES" >>"$CUDA_MPS_LOG_DIRECTORY/started"
    setsid /bin/sh -c '
        {stubborn}
        sleep 1000 &
        echo $$ >"$0/nvidia-cuda-mps-control.pid"
        while [ "$line" != quit ]; do read -r line <"$0/control"; {deaf}; done
        kill $!
        rm -f "$0/nvidia-cuda-mps-control.pid" "$0/control"
    ' "$pipe" </dev/null >/dev/null 2>&1 &
    exit 0
fi
read -r line
kill -0 "$(cat "$pipe/nvidia-cuda-mps-control.pid")" || exit 1
echo "$line" >"$pipe/control"
"""


def make_double(folder: Path, *, refuse: str = "", stubborn: bool = False) -> Path:
    """Write the program in a folder; ``refuse``: its message instead of a start, ``stubborn``: only KILL ends it."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-cuda-mps-control"
    text = _SCRIPT.format(
        refuse=f'echo "{refuse}"; exit 1' if refuse else ":",
        stubborn='trap "" TERM' if stubborn else ":",
        deaf="line=" if stubborn else ":",
    )
    program.write_text(text)
    program.chmod(0o755)
    return program
