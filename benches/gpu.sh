#!/bin/sh
# Tunes and compares on the GPU of this machine, in one call of a few minutes: a driver and a built program are all that it takes.
#
#   benches/gpu.sh TILESCRIBE OUT [SECONDS [NETWORK.onnx...]]
#
# TILESCRIBE is the program (cargo build --release), OUT a folder for what is measured: records of every program (gpu.db, gpu.jsonl.zst), a
# comparison of evolution with random sampling (compare/report.html), PTX of the fastest programs, the networks compiled and timed, and a log.
# Ends with 3 where there is no GPU.
set -eu
program=$1
out=$2
seconds=${3:-420}
if [ $# -gt 3 ]; then shift 3; else shift $#; fi
here=$(cd "$(dirname "$0")" && pwd)
operators=$here/../tests/files/nest/operators.txt
mkdir -p "$out/tasks"
# a file for each task, named as the line above it says
awk -v folder="$out/tasks" '/^# /{ file = folder "/" $2 ".txt"; next } NF { print > file }' "$operators"

log() { echo "$(date +%T) $*" | tee -a "$out/log.txt"; }

# says what is missing, and ends this with the program's exit code
first=$(ls "$out"/tasks/*.txt | head -n 1)
"$program" next "$first" --target cuda > "$out/log.txt"

log "$("$program" doctor --json 2>&1 | tail -n 1)"
count=$(ls "$out/tasks" | wc -l)
each=$((seconds / 2 / count))
for task in "$out"/tasks/*.txt; do
    name=$(basename "$task" .txt)
    # one that fails must not take the others with it
    log "$name $("$program" tune "$task" --target cuda --method evolution --trials 256 --time-budget "$each" --store "$out/gpu.db" --json 2>&1 | tail -n 1)" || true
done
"$program" records export "$out/gpu.jsonl.zst" --store "$out/gpu.db" 2>&1 | tee -a "$out/log.txt"
for task in "$out"/tasks/*.txt; do
    name=$(basename "$task" .txt)
    "$program" show "$task" --target cuda --store "$out/gpu.db" --asm > "$out/$name.ptx" 2>> "$out/log.txt" || { rm "$out/$name.ptx"; log "$name: no program"; }
done
for network in "$@"; do
    name=$(basename "$network" .onnx)
    log "$name $("$program" compile "$network" -o "$out/$name" --target cuda --trials-per-task 64 --time-budget $((seconds / 4 / $#)) \
        --store "$out/gpu.db" 2>&1 | tail -n 1)" || true
    log "$name $("$program" bench "$out/$name" 2>&1 | tail -n 1)" || true
done
timeout $((seconds / 4)) "$program" compare --methods evolution,random --workloads "$out/tasks" --trials 16 --seeds 1 --target cuda \
    -o "$out/compare" 2>&1 | tail -n 5 | tee -a "$out/log.txt"
log done
