#!/usr/bin/env python3
"""Times modules of PyTorch with random weights: eager, inductor, inductor with max-autotune, and Tilescribe.

usage: torch_modules.py [--trials N] [--rounds K] [--threads T] [--json FILE] [NAME ...]

Each module is compiled by `torch.compile(module, backend=...)` in a process of its own; results have to agree with eager ones within 1e-3 of
their largest magnitude. Rounds take turns; times are medians over all runs of the faster half of rounds. The last column is the time of the
best of PyTorch's three over Tilescribe's. Inductor freezes weights with max-autotune, as its documentation advises for inference.
Needs torch, torchvision, timm, transformers, and the packages tilescribe and tilescribe-runtime.
Exit code: 0 if all agree, 1 if one does not.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings


def vision(name, size=224):
    import torch
    import torchvision

    return torchvision.models.get_model(name, weights=None), (torch.randn(1, 3, size, size),)


def timm_model(name, size=224):
    import timm
    import torch

    return timm.create_model(name, pretrained=False), (torch.randn(1, 3, size, size),)


def bert():
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    return BertModel(config), (torch.randint(0, 30000, (1, 128)), torch.ones(1, 128, dtype=torch.int64))


def gpt2():
    import torch
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(n_layer=6, use_cache=False)), (torch.randint(0, 50000, (1, 64)),)


def whisper_encoder():
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder(WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)), (
        torch.randn(1, 80, 3000),
    )


MODULES = {
    "resnet18": lambda: vision("resnet18"),
    "mobilenet_v3_large": lambda: vision("mobilenet_v3_large"),
    "squeezenet1_1": lambda: vision("squeezenet1_1"),
    "shufflenet_v2_x1_0": lambda: vision("shufflenet_v2_x1_0"),
    "regnet_y_400mf": lambda: vision("regnet_y_400mf"),
    "convnext_atto": lambda: timm_model("convnext_atto"),
    "vit_tiny": lambda: timm_model("vit_tiny_patch16_224"),
    "mixer_s32": lambda: timm_model("mixer_s32_224"),
    "ghostnet_100": lambda: timm_model("ghostnet_100"),
    "bert_6x384": bert,
    "gpt2_6x768": gpt2,
    "whisper_encoder_tiny": whisper_encoder,
}

BACKENDS = ["eager", "inductor", "max-autotune", "tilescribe"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(MODULES)}; none: all of them")
    parser.add_argument("--trials", type=int, default=10, help="measured programs of each task")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=pathlib.Path, help="write what was measured to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options)))
        return 0
    unknown = set(options.names) - set(MODULES)
    if unknown:
        parser.error(f"no module {', '.join(unknown)}")
    print(f"{'module':<22}" + "".join(f"{name:>14}" for name in BACKENDS) + f"{'ratio':>8} {'difference':>11}  compiled in s")
    found, ratios, failed = {}, [], False
    for name in options.names or MODULES:
        command = [sys.executable, __file__, "--one", name, f"--trials={options.trials}", f"--rounds={options.rounds}"]
        done = subprocess.run([*command, f"--threads={options.threads}"], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            print(f"{name:<22} failed")
            failed = True
            continue
        result = json.loads(done.stdout.splitlines()[-1])
        found[name] = result
        times = result["ms"]
        ratio = min(times[other] for other in BACKENDS[:3] if other in times) / times["tilescribe"]
        ratios.append(ratio)
        failed |= not result["difference"] <= 1e-3
        cells = "".join(f"{times[it]:>11.3f} ms" if it in times else f"{'-':>14}" for it in BACKENDS)
        notes = f"  falls back: {'; '.join(result['fallbacks'])}" if result["fallbacks"] else ""
        seconds = ", ".join(f"{value:.0f}" for value in result["compile_s"].values())
        print(f"{name:<22}{cells}{ratio:>8.2f} {result['difference']:>11.1e}  {seconds}{notes}", flush=True)
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"geometric mean of {len(ratios)}: {mean:.2f}, lowest {min(ratios):.2f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(failed)


def measure(name, options):
    import torch
    import torch._inductor.config as inductor
    from tilescribe import dynamo

    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    module, inputs = MODULES[name]()
    module.eval()
    for parameter in module.parameters():
        if parameter.ndim > 1 and not parameter.any():  # a head of zeros would hide every error
            torch.nn.init.normal_(parameter, std=0.02)
    functions, compile_s = {"eager": module}, {}
    with torch.no_grad():
        expected = flat(module(*inputs))
        difference = 0.0
        for backend in BACKENDS[1:]:
            # a reset of dynamo would compile the others anew, with the settings of the last
            inductor.freezing = backend == "max-autotune"
            start = time.monotonic()
            try:
                compiled = compile_with(module, backend, options)
                results = flat(compiled(*inputs))
            except Exception as error:  # the peer's failure is a result, too
                if backend == "tilescribe":
                    raise
                print(f"{name}: {backend} failed: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            compile_s[backend] = time.monotonic() - start
            if backend == "tilescribe":
                difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(results, expected, strict=True))
            functions[backend] = compiled
        ms = rounds(functions, inputs, options.rounds)
    return {"ms": ms, "difference": difference, "compile_s": compile_s, "fallbacks": [it.reason for it in dynamo.fallbacks()]}


def compile_with(module, backend, options):
    import torch

    match backend:
        case "inductor":
            return torch.compile(module)
        case "max-autotune":
            return torch.compile(module, mode="max-autotune")
        case _:
            return torch.compile(module, backend="tilescribe", options={"trials": options.trials, "threads": options.threads})


def flat(result):
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if hasattr(result, "values") else result
    return [tensor for value in values if value is not None for tensor in flat(value)]


def rounds(functions, inputs, count):
    times = {name: [] for name in functions}
    for _ in range(count):
        for name, function in functions.items():
            function(*inputs)
            runs, end = [], time.perf_counter() + 0.3
            while time.perf_counter() < end or len(runs) < 3:
                start = time.perf_counter()
                function(*inputs)
                runs.append(time.perf_counter() - start)
            times[name].append(statistics.median(runs))
    half = (count + 1) // 2
    return {name: 1e3 * statistics.median(sorted(found)[:half]) for name, found in times.items()}


if __name__ == "__main__":
    sys.exit(main())
