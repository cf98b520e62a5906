#!/bin/sh
# One program of the chaos mix: MARKS SECONDS STATUS ORPHAN BURNERS USES. Each line is one write to a file opened for
# appending. USES: how often a process uses CUDA.
burners=$5
while [ "${burners:-0}" -gt 0 ]; do
    (while :; do :; done >/dev/null 2>&1 &) # its parent has ended: the pool has to end it
    burners=$((burners - 1))
done
echo "$GPUPOOL_REPLICA_KEY start" >>"$1"
if [ "$4" = 1 ]; then
    (setsid sleep 600 >/dev/null 2>&1 &) # a daemon that nobody would miss: the pool has to end it
fi
uses=$6
if [ -n "$CHAOS_HOLDS" ]; then # one process keeps memory of its GPU over all uses
    "$CHAOS_PYTHON" -S "${0%/*}/_chaos_holder.py" "$uses" || exit 9
    uses=0
fi
while [ "${uses:-0}" -gt 0 ]; do
    "$CHAOS_PYTHON" -S -c "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0))" || exit 9
    sleep 1.5
    uses=$((uses - 1))
done
sleep "$2"
echo "$GPUPOOL_REPLICA_KEY end" >>"$1"
exit "$3"
