#!/usr/bin/env python3
"""Chooses the tasks that search methods are compared on, from the evaluation networks.

usage: select_tasks.py TILESCRIBE NETWORK_DIR OUT_DIR [--each 8] [--precision f32|bf16] [--multiplied]

Of each of resnet50, resnext50, mobilenet_v2, bert_base, vit_b_16 and gpt2 (NETWORK_DIR/NAME.onnx) EACH
tasks, each computation once: kinds of task (the name up to its sizes) take turns, and within a kind the
tasks that hold the most arithmetic of an inference (calls times flops) come first. Writes a file for each,
NN_NAME.txt, in the order in which they were chosen. With --multiplied only those that sum products of bf16.
"""
import argparse
import collections
import pathlib
import re
import subprocess

NETWORKS = ["resnet50", "resnext50", "mobilenet_v2", "bert_base", "vit_b_16", "gpt2"]


def tasks(tilescribe, network, precision):
    """(share of the arithmetic, hash, name, text) of each task."""
    command = [tilescribe, "tasks", network, "--precision", precision]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
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
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--multiplied", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known = set()
    for network in NETWORKS:
        chosen = 0
        found = tasks(args.tilescribe, args.networks / f"{network}.onnx", args.precision)
        for _, digest, name, text in in_turn(found):
            is_wanted = not args.multiplied or " mul cast f32 " in text
            if digest in known or chosen == args.each or not is_wanted:
                continue
            (args.out / f"{len(known):02}_{name}.txt").write_text(text + "\n")
            known.add(digest)
            chosen += 1
        print(f"{network}: {chosen} tasks")


if __name__ == "__main__":
    main()
