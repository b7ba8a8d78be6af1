#!/bin/sh
# Tunes and compares on the GPU of this machine, in one call of a few minutes: a driver and a built program are all that it takes.
#
#   benches/gpu.sh TILESCRIBE OUT [SECONDS [NETWORK.onnx...]]
#
# TILESCRIBE is the program (cargo build --release), OUT a folder for what is measured: records of every program (gpu.db and held_out.db, each as .jsonl.zst, too),
# PTX of the fastest programs, the networks compiled and timed, a checkpoint that has learned from the programs of gpu.db, a comparison of lm with it, evolution and random sampling on the ten
# operators of held_out.db, of which it has seen nothing (compare/report.html), and a log.
# Ends with 3 where there is no GPU.
set -eu
program=$1
out=$2
seconds=${3:-420}
if [ $# -gt 3 ]; then shift 3; else shift $#; fi
here=$(cd "$(dirname "$0")" && pwd)
operators=$here/../tests/files/nest/operators.txt
mkdir -p "$out/tasks/gpu" "$out/tasks/held_out"
# a file for each task, named as the line above it says; ten of 27 are held out
awk -v folder="$out/tasks" '/^# /{ part = (count++ * 3) % 8 < 3 ? "held_out" : "gpu"; file = folder "/" part "/" $2 ".txt"; next } NF { print > file }' "$operators"

log() { echo "$(date +%T) $*" | tee -a "$out/log.txt"; }

# says what is missing, and ends this with the program's exit code
first=$(ls "$out"/tasks/gpu/*.txt | head -n 1)
"$program" next "$first" --target cuda > "$out/log.txt"

log "$("$program" doctor --json 2>&1 | tail -n 1)"
count=$(ls "$out"/tasks/*/*.txt | wc -l)
each=$((seconds / 2 / count))
for task in "$out"/tasks/*/*.txt; do
    name=$(basename "$task" .txt)
    store=$out/$(basename "$(dirname "$task")").db
    # one that fails must not take the others with it
    log "$name $("$program" tune "$task" --target cuda --method evolution --trials 256 --time-budget "$each" --store "$store" --json 2>&1 | tail -n 1)" || true
done
for part in gpu held_out; do
    "$program" records export "$out/$part.jsonl.zst" --store "$out/$part.db" 2>&1 | tee -a "$out/log.txt"
done
for task in "$out"/tasks/*/*.txt; do
    name=$(basename "$task" .txt)
    "$program" show "$task" --target cuda --store "$out/$(basename "$(dirname "$task")").db" --asm > "$out/$name.ptx" 2>> "$out/log.txt" || { rm "$out/$name.ptx"; log "$name: no program"; }
done
for network in "$@"; do
    name=$(basename "$network" .onnx)
    log "$name $("$program" compile "$network" -o "$out/$name" --target cuda --trials-per-task 64 --time-budget $((seconds / 4 / $#)) \
        --store "$out/gpu.db" 2>&1 | tail -n 1)" || true
    log "$name $("$program" bench "$out/$name" 2>&1 | tail -n 1)" || true
done
# stopped half-way, it tells of what it has
methods=evolution,random
if timeout -s INT -k 5 $((seconds / 8)) "$program" finetune --checkpoint built-in --store "$out/gpu.db" -o "$out/checkpoint" --epochs 1 >> "$out/log.txt" 2>&1; then
    methods=lm,$methods
else
    log "no checkpoint in $((seconds / 8)) s: lm does not take part"
fi
timeout -s INT -k 20 $((seconds / 4)) "$program" compare --methods "$methods" --checkpoint "$out/checkpoint" --workloads "$out/tasks/held_out" --trials 64 --seeds 1 \
    --target cuda -o "$out/compare" 2>&1 | tail -n 5 | tee -a "$out/log.txt"
log done
