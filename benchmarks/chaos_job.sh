#!/bin/sh
# One program of the chaos mix: MARKS SECONDS STATUS ORPHAN. Each line is one write to a file opened for appending.
echo "$GPUPOOL_REPLICA_KEY start" >>"$1"
if [ "$4" = 1 ]; then
    (setsid sleep 600 >/dev/null 2>&1 &) # a daemon that nobody would miss: the pool has to end it
fi
sleep "$2"
echo "$GPUPOOL_REPLICA_KEY end" >>"$1"
exit "$3"
