#!/usr/bin/env python3
"""Chooses the tasks of a corpus from what `tilescribe tasks` printed for the training networks.

usage: select_workloads.py TRAIN_DIR EVAL_DIR OUT_DIR [--count 170] [--mflop 250]

TRAIN_DIR and EVAL_DIR hold the printed tasks, a .txt file a network. A task whose hash occurs in EVAL_DIR
is left out, and EVAL_DIR's hashes are written to OUT_DIR/../excluded.txt, which a test compares with the
corpus. Kinds of task (the name up to its sizes) take turns until COUNT tasks are chosen; within a kind the
order is that of a seeded shuffle. Tasks above MFLOP are left out: their oracle takes too long. Tasks that
OUT_DIR holds already stay, unless they are excluded now, and do not count.
"""
import argparse
import collections
import pathlib
import random
import re


def tasks(folder):
    """(hash, name, Mflop, text) of every task."""
    for path in sorted(folder.glob("*.txt")):
        for block in path.read_text().split("\n\n"):
            comment, _, text = block.strip().partition("\n")
            if comment.startswith("#"):
                _, _, name, _, digest, mflop, _ = comment.split()
                yield digest.rstrip(","), name, float(mflop), text


def kept(folder):
    """(hash, name, text) of the tasks of an earlier selection."""
    for path in sorted(folder.glob("*.txt")):
        for block in path.read_text().split("\n\n"):
            comment, _, text = block.strip().partition("\n")
            if comment.startswith("#"):
                _, _, name, digest = comment.split()
                yield digest, name, text


def kind_of(name):
    """`conv_3x3s2_64x56x56_128_relu` is of the kind conv_3x3s2, `layer_norm_128x768` of layer_norm."""
    return re.match(r"[a-z][a-z_]*?(?=_\d|$)(_\d+x\d+(x\d+)?(s\d+)?(?=_\d))?", name)[0].rstrip("_")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=pathlib.Path)
    parser.add_argument("evaluation", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=170)
    parser.add_argument("--mflop", type=float, default=250)
    args = parser.parse_args()

    excluded = {digest: name for digest, name, _, _ in tasks(args.evaluation)}
    chosen = collections.defaultdict(list)
    known = set()
    for digest, name, text in kept(args.out):
        if digest not in excluded:
            chosen[kind_of(name)].append((digest, (name, text)))
            known.add(digest)
    kinds = collections.defaultdict(dict)
    for digest, name, mflop, text in tasks(args.train):
        if digest not in excluded and digest not in known and mflop <= args.mflop:
            kinds[kind_of(name)].setdefault(digest, (name, text))
    rng = random.Random(0)
    queues = {}
    for kind in sorted(kinds):
        queues[kind] = sorted(kinds[kind].items())
        rng.shuffle(queues[kind])
    count = 0
    while count < args.count and any(queues.values()):
        for kind, queue in queues.items():
            if queue and count < args.count:
                chosen[kind].append(queue.pop())
                count += 1
    args.out.mkdir(parents=True, exist_ok=True)
    for old in args.out.glob("*.txt"):
        old.unlink()
    for kind, items in chosen.items():
        blocks = [f"# {number} {name} {digest}\n{text}\n" for number, (digest, (name, text)) in enumerate(sorted(items))]
        (args.out / f"{kind}.txt").write_text("\n".join(blocks))
    lines = [f"{digest} {name}\n" for digest, name in sorted(excluded.items())]
    (args.out.parent / "excluded.txt").write_text("".join(lines))
    print(f"{len(known)} tasks stay, {count} are new, of {len(chosen)} kinds in {args.out}; {len(excluded)} excluded")


if __name__ == "__main__":
    main()
