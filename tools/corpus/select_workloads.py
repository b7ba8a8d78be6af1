#!/usr/bin/env python3
"""Chooses the tasks of a corpus from what `tilescribe tasks` printed for the training networks.

usage: select_workloads.py TRAIN_DIR EVAL OUT_DIR [--count 170] [--mflop 250] [--short]

TRAIN_DIR holds the printed tasks, a .txt file a network. EVAL is such a folder, too, or the list that was
made of one. A task whose hash occurs in EVAL is left out, and a folder's hashes are written to
OUT_DIR/../excluded.txt, which a test compares with the corpus. Kinds of task (the name up to its sizes)
take turns until COUNT tasks are chosen; within a kind the order is that of a seeded shuffle. Tasks above
MFLOP are left out: their oracle takes too long. Tasks that OUT_DIR holds already stay, unless they are
excluded now, and do not count.

With --short only tasks of short numbers are chosen, and kinds differ by their types, too. Scales and zero
points are part of a task's hash, so a task of 8 bits is left out where its kind and sizes are those of one
in EVAL, whatever is fused behind it.
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


def sizes_of(name):
    """What is left of a name without what is fused behind: `conv_1x1_64x7x7_32` of `conv_1x1_64x7x7_32_add_relu`."""
    return re.match(r".*\d|[a-z_]+", name)[0]


def form_of(text):
    """The short numbers that a task computes with: of weights alone (`stored`), or of what flows, too."""
    types = set(re.findall(r"\b(bf16|u8|i8)\b", re.sub(r"(?m)^out .*", "", text)))
    flowing = set(re.findall(r"(?m)^input \w+ (bf16|u8|i8)\b", text))
    if not types:
        return None
    return "bf16" if types == {"bf16"} else "8bit" if flowing else "stored"


def excluded_by(evaluation):
    """Names by hash, of a folder of printed tasks or of the list that was written of one."""
    if evaluation.is_dir():
        return {digest: name for digest, name, _, _ in tasks(evaluation)}
    return dict(line.split() for line in evaluation.read_text().splitlines())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=pathlib.Path)
    parser.add_argument("evaluation", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=170)
    parser.add_argument("--mflop", type=float, default=250)
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()

    excluded = excluded_by(args.evaluation)
    sizes = {sizes_of(name) for name in excluded.values()}
    chosen = collections.defaultdict(list)
    known = set()
    for digest, name, text in kept(args.out):
        if digest not in excluded:
            form = form_of(text)
            chosen[f"{kind_of(name)}_{form}" if form else kind_of(name)].append((digest, (name, text)))
            known.add(digest)
    kinds = collections.defaultdict(dict)
    for digest, name, mflop, text in tasks(args.train):
        if digest in excluded or digest in known or mflop > args.mflop:
            continue
        form = form_of(text)
        if not args.short:
            kinds[kind_of(name)].setdefault(digest, (name, text))
        elif form and sizes_of(name) not in sizes:
            kinds[f"{kind_of(name)}_{form}"].setdefault(digest, (name, text))
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
    if args.evaluation.is_dir():
        lines = [f"{digest} {name}\n" for digest, name in sorted(excluded.items())]
        (args.out.parent / "excluded.txt").write_text("".join(lines))
    print(f"{len(known)} tasks stay, {count} are new, of {len(chosen)} kinds in {args.out}; {len(excluded)} excluded")


if __name__ == "__main__":
    main()
