"""Output files of jobs by Slurm's patterns.

A small program of the shell replaces the patterns at the start, because job id, task and node are known only then. It
is constant; patterns and command are its arguments.
"""

from __future__ import annotations

PROGRAM = r"""
if [ -n "${GPUPOOL_PARAM_TASK:-}" ]; then
  SLURM_ARRAY_TASK_ID=$GPUPOOL_PARAM_TASK
  export SLURM_ARRAY_TASK_ID
fi
expand() {
  rest=$1 out=
  while :; do
    case $rest in *%*) ;; *) break ;; esac
    out=$out${rest%%%*} rest=${rest#*%} digits=
    while :; do
      case $rest in [0-9]*) digits=$digits${rest%"${rest#?}"} rest=${rest#?} ;; *) break ;; esac
    done
    letter=${rest%"${rest#?}"} rest=${rest#?}
    case $letter in
      j) value=$SLURM_JOB_ID ;;
      J) value=$SLURM_JOB_ID ;;
      A) value=$SLURM_JOB_ID ;;
      a) value=${SLURM_ARRAY_TASK_ID:-0} ;;
      x) value=$SLURM_JOB_NAME ;;
      u) value=$SLURM_JOB_USER ;;
      N) value=${SLURMD_NODENAME%%.*} ;;
      n | t | s) value=0 ;;
      %) value=% digits= ;;
      *) value=%$letter digits= ;;
    esac
    while [ "${#value}" -lt "${digits:-0}" ] && [ "${digits:-0}" -le 10 ]; do value=0$value; done
    out=$out$value
  done
  out=$out$rest
}
output=$1 error=$2 append=$3
shift 3
unset GPUPOOL_SLURM_OUTPUT
if [ -n "$output" ]; then
  expand "$output"
  echo "gpupool: the output is in $out" >&2
  if [ "$append" = 1 ]; then exec >>"$out" || exit 125; else exec >"$out" || exit 125; fi
  [ -n "$error" ] || exec 2>&1
fi
if [ -n "$error" ]; then
  expand "$error"
  if [ "$append" = 1 ]; then exec 2>>"$out" || exit 125; else exec 2>"$out" || exit 125; fi
fi
exec "$@"
"""


VARIABLE = "GPUPOOL_SLURM_OUTPUT"  # has the program, so that lists of jobs show a short command


def redirected(command: list[str], output: str, error: str, *, append: bool) -> list[str]:
    """Return the command that writes its output to files; empty patterns leave it with the pool."""
    return ["/bin/sh", "-c", f'eval "${VARIABLE}"', "slurm", output, error, str(int(append)), *command]
