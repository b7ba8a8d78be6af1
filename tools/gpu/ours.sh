#!/bin/sh
# Times what tools/gpu.sh left in a folder once more: ours.sh TILESCRIBE OUT NAME. The last line of the output
# is {"min_ms":..}.
set -eu
if [ -d "$2/networks/$3" ]; then
    exec "$1" bench "$2/networks/$3"
fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
"$1" measure --plan "$2/winners/$3.plan" --target cuda -o "$folder/measured.jsonl.zst" --store "$folder/measured.db" > "$folder/log.txt" 2>&1 || { cat "$folder/log.txt" >&2; exit 1; }
"$1" records list --store "$folder/measured.db" --json | sed -n 's/.*"best_ns":\([0-9][0-9]*\).*/{"min_ms":\1e-6}/p'
