#!/bin/sh
# Tunes, checks and compares on the GPU of this machine, in one call of a few minutes: a driver and a built
# program are all that it takes.
#
#   tools/gpu.sh TILESCRIBE OUT [SECONDS [NETWORK.onnx...]]
#
# TILESCRIBE is the program (cargo build --release), OUT a folder for what comes out. PARTS in the environment
# names what is done, all of it by default:
#
#   random    random programs of tasks of the corpus, checked and timed: random.jsonl.zst
#   tune      the 27 operators of tests/files/nest/operators.txt, 17 that a model learns from (gpu.jsonl.zst) and ten that it does not (held_out.jsonl.zst);
#             tools/gpu/products.txt (products.jsonl.zst; those of f32, with --exact, exact.jsonl.zst); the fastest program of each in winners/, as a plan
#             for `measure` and as PTX
#   networks  the networks, compiled, in networks/; their outputs beside ONNX Runtime's, where python3 has it (tools/gpu/check_network.py)
#   torch     all of them beside PyTorch, in turn in one run, where python3 has it (tools/gpu/beside_torch.py): torch.md
#   sanitize  what compute-sanitizer says of the winners, where it is there: memcheck.txt, racecheck.txt
#   learn     a checkpoint that has learned from gpu.jsonl.zst, and lm with it beside evolution and random sampling, on the ten operators: compare/
#
# What happens is told in log.txt. Takes about a fifth longer than SECONDS. Ends with 3 where there is no GPU.
set -eu
program=$1
out=$2
seconds=${3:-420}
parts=${PARTS:-random tune networks torch sanitize learn}
if [ $# -gt 3 ]; then shift 3; else shift $#; fi
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out/stores" "$out/winners" "$out/networks"
for part in gpu held_out products exact; do mkdir -p "$out/tasks/$part"; done
# a file for each task, named as the line above it says; ten of 27 operators are held out
awk -v folder="$out/tasks" '/^# /{ part = (count++ * 3) % 8 < 3 ? "held_out" : "gpu"; file = folder "/" part "/" $2 ".txt"; next } NF { print > file }' \
    "$here/../tests/files/nest/operators.txt"
awk -v folder="$out/tasks" '/^# /{ part = $2 ~ /_f32_/ ? "exact" : "products"; file = folder "/" part "/" $2 ".txt"; next } NF { print > file }' "$here/gpu/products.txt"

asked() { case " $parts " in *" $1 "*) true ;; *) false ;; esac; }
log() { echo "$(date +%T) $*" | tee -a "$out/log.txt"; }
# one that fails, or is stopped, must not take the others with it
last_line() { "$@" 2>&1 | tail -n 1; }

# says what is missing, and ends this with the program's exit code
first=$(ls "$out"/tasks/gpu/*.txt | head -n 1)
"$program" next "$first" --target cuda > "$out/log.txt"
log "$("$program" doctor --json 2>&1 | tail -n 1)"

if asked random; then
    "$program" plan --workloads "$here/../corpus/workloads" --target cuda --tasks 96 --programs 6 -o "$out/random.plan" >> "$out/log.txt" 2>&1
    log "random: $(timeout -s INT -k 5 $((seconds / 6)) "$program" measure --plan "$out/random.plan" --target cuda -o "$out/random.jsonl.zst" 2>&1 | tail -n 2 | tr '\n' ' ')"
fi

if asked tune; then
    count=$(ls "$out"/tasks/*/*.txt | wc -l)
    each=$((seconds * 3 / 10 / count + 1))
    for task in "$out"/tasks/*/*.txt; do
        name=$(basename "$task" .txt)
        part=$(basename "$(dirname "$task")")
        exact=
        if [ "$part" = exact ]; then exact=--exact; fi
        store=$out/stores/$name.db
        log "$name $(last_line "$program" tune "$task" --target cuda --method evolution --trials 512 --time-budget "$each" --store "$store" --json $exact)"
        # all of them with others of their kind, and the fastest alone
        records=$out/stores/$name.jsonl.zst
        fastest=$out/winners/$name.db
        "$program" records export "$records" --store "$store" >> "$out/log.txt" 2>&1 || continue
        "$program" records import "$records" --store "$out/$part.db" >> "$out/log.txt"
        "$program" records import "$records" --store "$fastest" >> "$out/log.txt"
        "$program" records prune --keep 1 --store "$fastest" >> "$out/log.txt"
        "$program" records export "$out/winners/$name.jsonl.zst" --store "$fastest" >> "$out/log.txt"
        "$program" plan --records "$out/winners/$name.jsonl.zst" --target cuda -o "$out/winners/$name.plan" >> "$out/log.txt" 2>&1 || log "$name: no plan"
        "$program" show "$task" --target cuda --store "$fastest" --asm > "$out/winners/$name.ptx" 2>> "$out/log.txt" || { rm "$out/winners/$name.ptx"; log "$name: no program"; }
    done
    for part in gpu held_out products exact; do
        "$program" records export "$out/$part.jsonl.zst" --store "$out/$part.db" 2>&1 | tee -a "$out/log.txt"
    done
fi

if asked networks; then
    for network in "$@"; do
        name=$(basename "$network" .onnx)
        log "$name $(last_line "$program" compile "$network" -o "$out/networks/$name" --target cuda --method evolution --trials-per-task 64 \
            --time-budget $((seconds / 8 / $#)) --store "$out/networks.db")"
        if python3 -c 'import onnxruntime' 2> /dev/null; then
            log "$name $(last_line python3 "$here/gpu/check_network.py" "$program" "$network" "$out/networks/$name")"
        fi
    done
fi

if asked torch; then
    if python3 -c 'import torch' 2> /dev/null; then
        names=
        for network in "$@"; do names="$names $(basename "$network" .onnx)"; done
        for task in "$out"/tasks/*/*.txt; do names="$names $(basename "$task" .txt)"; done
        # shellcheck disable=SC2086
        timeout $((seconds * 3 / 10)) python3 "$here/gpu/beside_torch.py" --compile-seconds $((seconds / 8)) --json "$out/torch.json" \
            --ours "sh '$here/gpu/ours.sh' '$program' '$out' {name}" $names 2>> "$out/log.txt" | tee "$out/torch.md"
    else
        log "python3 has no torch: nothing beside it"
    fi
fi

if asked sanitize; then
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null || true)
    if [ -n "$sanitizer" ]; then
        "$program" plan --records "$out"/winners/*.jsonl.zst --target cuda -o "$out/winners.plan" >> "$out/log.txt" 2>&1
        for tool in memcheck racecheck; do
            timeout -s INT -k 5 $((seconds / 14)) "$sanitizer" --tool $tool --target-processes all --error-exitcode 9 --log-file "$out/$tool.txt" \
                "$program" measure --plan "$out/winners.plan" --target cuda -o "$out/$tool.jsonl.zst" >> "$out/log.txt" 2>&1 || log "$tool: ended with $?"
            log "$tool: $(tail -n 1 "$out/$tool.txt" 2>&1)"
        done
    else
        log "no compute-sanitizer here"
    fi
fi

if asked learn; then
    # stopped half-way, it tells of what it has
    methods=evolution,random
    if timeout -s INT -k 5 $((seconds / 10)) "$program" finetune --checkpoint built-in --store "$out/gpu.db" -o "$out/checkpoint" --epochs 1 >> "$out/log.txt" 2>&1; then
        methods=lm,$methods
    else
        log "no checkpoint in $((seconds / 10)) s: lm does not take part"
    fi
    timeout -s INT -k 20 $((seconds / 5)) "$program" compare --methods "$methods" --checkpoint "$out/checkpoint" --workloads "$out/tasks/held_out" --trials 64 --seeds 1 \
        --target cuda -o "$out/compare" 2>&1 | tail -n 5 | tee -a "$out/log.txt"
fi

log done
