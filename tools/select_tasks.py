#!/usr/bin/env python3
"""Chooses the tasks that search methods are compared on, from the evaluation networks.

usage: select_tasks.py TILESCRIBE NETWORK_DIR OUT_DIR [--each 8]

Of each of resnet50, resnext50, mobilenet_v2, bert_base, vit_b_16 and gpt2 (NETWORK_DIR/NAME.onnx) EACH
tasks, each computation once: kinds of task (the name up to its sizes) take turns, and within a kind the
tasks that hold the most arithmetic of an inference (calls times flops) come first. Writes a file for each,
NN_NAME.txt, in the order in which they were chosen.
"""
import argparse
import collections
import pathlib
import re
import subprocess

NETWORKS = ["resnet50", "resnext50", "mobilenet_v2", "bert_base", "vit_b_16", "gpt2"]


def tasks(tilescribe, network):
    """(share of the arithmetic, hash, name, text) of each task."""
    printed = subprocess.run([tilescribe, "tasks", network], check=True, capture_output=True, text=True).stdout
    for block in printed.split("\n\n"):
        comment, _, text = block.strip().partition("\n")
        if comment.startswith("#"):
            _, _, name, calls, digest, mflop, _ = comment.split()
            yield int(calls.removeprefix("x")) * float(mflop), digest.rstrip(","), name, text


def in_turn(tasks):
    """The first of each kind, then the second of each, ...; kinds and tasks by their arithmetic, largest first."""
    kinds = collections.defaultdict(list)
    for task in sorted(tasks, reverse=True):
        kinds[re.match(r"[a-z][a-z_]*?(?=_\d|$)(_\d+x\d+(s\d+)?(?=_\d+x\d+x))?", task[2])[0]].append(task)
    while any(kinds.values()):
        for queue in kinds.values():
            if queue:
                yield queue.pop(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tilescribe")
    parser.add_argument("networks", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--each", type=int, default=8)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known = set()
    for network in NETWORKS:
        chosen = 0
        for _, digest, name, text in in_turn(tasks(args.tilescribe, args.networks / f"{network}.onnx")):
            if digest in known or chosen == args.each:
                continue
            (args.out / f"{len(known):02}_{name}.txt").write_text(text + "\n")
            known.add(digest)
            chosen += 1
        print(f"{network}: {chosen} tasks")


if __name__ == "__main__":
    main()
