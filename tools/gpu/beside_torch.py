#!/usr/bin/env python3
"""Times operators, products of matrices and networks in PyTorch on a GPU, in turn with Tilescribe, in one run;
prints a Markdown table.

    python3 beside_torch.py --ours 'CMD {name}' [--rounds 2] [--seconds 0.1] [--compile-seconds 150] [--json OUT] NAME...

A name tells what it is and its sizes: an operator as in tests/files/nest/operators.txt, a product of
matrices (product_f16_4096x4096x4096; of f32, tf32, f16 or bf16), or a network of torchvision or
transformers (resnet50, bert_base, ...). CMD prints a JSON object with "min_ms" as its last line.

PyTorch runs eagerly (cuBLAS, cuDNN) and compiled (torch.compile, max-autotune; as long as --compile-seconds
last). Both are recorded as CUDA graphs, so that starting kernels costs them nothing, over several copies of
all arguments, so that no run finds its own in the second-level cache; Tilescribe's programs are timed over
such copies, too. f32 is rounded to TF32 everywhere but in product_f32.
"""

import argparse
import json
import math
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

TYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ACTIVATIONS = {"": lambda y: y, "_relu": F.relu, "_gelu": F.gelu}
TORCHVISION = {
    "resnet18": "resnet18", "resnet50": "resnet50", "mobilenet_v2": "mobilenet_v2", "resnext50": "resnext50_32x4d", "densenet121": "densenet121",
    "vit_b_16": "vit_b_16", "efficientnet_b0": "efficientnet_b0", "squeezenet": "squeezenet1_1",
}
# layers, width, heads
BERT = {"bert_tiny": (2, 128, 2), "bert_base": (12, 768, 12)}
MOST_COPIES = 64
MOST_BYTES = 4 << 30


class Work:
    """A function of tensors, and their shapes: what changes from run to run and weights alike."""

    def __init__(self, function, shapes, dtype=torch.float32, tf32=True, flops=None):
        self.function, self.shapes, self.dtype, self.tf32, self.flops = function, shapes, dtype, tf32, flops

    def copies(self, device):
        """As many as the second-level cache does not hold."""
        size = sum(math.prod(shape) for shape in self.shapes) * self.dtype.itemsize
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        count = max(1, min(-(-2 * cache // size) + 1, MOST_COPIES, MOST_BYTES // size))
        return [[torch.randn(shape, device=device).to(self.dtype) for shape in self.shapes] for _ in range(count)]


def numbers(text):
    return [int(number) for number in text.split("x")]


def dense(match):
    (m, k, n), activation = numbers(match[1]), ACTIVATIONS[match[2]]
    return Work(lambda x, w, b: activation(torch.addmm(b, x, w)), [(m, k), (k, n), (n,)], flops=2 * m * k * n)


def matmul(match):
    b, m, k, n = numbers(match[1])
    return Work(torch.bmm, [(b, m, k), (b, k, n)], flops=2 * b * m * k * n)


def product(match):
    m, k, n = numbers(match[2])
    return Work(torch.mm, [(m, k), (k, n)], TYPES[match[1]], match[1] != "f32", 2 * m * k * n)


def convolution(inputs, outputs, side, kernel, stride=1, groups=1, relu=True, dims=2):
    function = {2: F.conv2d, 3: F.conv3d}[dims]

    def run(x, w, b):
        y = function(x, w, b, stride=stride, padding=kernel // 2, groups=groups)
        return F.relu(y) if relu else y

    return Work(run, [(1, inputs, *[side] * dims), (outputs, inputs // groups, *[kernel] * dims), (outputs,)])


def conv(match):
    kernel, stride, groups, inputs, side, outputs = (int(group or 1) for group in match.groups())
    # the shortcuts of residual networks have no activation of their own
    return convolution(inputs, outputs, side, kernel, stride, groups, relu=(kernel, stride) != (1, 2))


def depthwise(match):
    kernel, stride, channels, side = (int(group or 1) for group in match.groups())
    return convolution(channels, channels, side, kernel, stride, channels)


def conv3d(match):
    kernel, inputs, side, outputs = (int(group) for group in match.groups())
    return convolution(inputs, outputs, side, kernel, dims=3)


def conv_transpose(match):
    kernel, stride, inputs, side, outputs = (int(group) for group in match.groups())
    padding = (kernel - stride) // 2
    return Work(lambda x, w: F.relu(F.conv_transpose2d(x, w, stride=stride, padding=padding)), [(1, inputs, side, side), (inputs, outputs, kernel, kernel)])


def attention(match):
    heads, length, width = numbers(match[1])
    return Work(
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k.transpose(1, 2)[None], v[None]),
        [(heads, length, width), (heads, width, length), (heads, length, width)],
        flops=4 * heads * length * length * width,
    )


def layer_norm(match):
    rows, width = numbers(match[1])
    return Work(lambda x, w, b: F.layer_norm(x, (width,), w, b), [(rows, width), (width,), (width,)])


def softmax(match):
    return Work(lambda x: F.softmax(x, -1), [tuple(numbers(match[1]))])


def max_pool(match):
    kernel, stride, channels, side = (int(group) for group in match.groups())
    return Work(lambda x: F.max_pool2d(x, kernel, stride, kernel // 2), [(1, channels, side, side)])


def global_pool(match):
    channels, side = numbers(match[1])
    return Work(lambda x: x.mean((2, 3)), [(1, channels, side, side)])


OPERATORS = [
    (r"dense_(\d+x\d+x\d+)(_relu|_gelu|)", dense),
    (r"matmul_(\d+x\d+x\d+x\d+)", matmul),
    (r"product_(f32|tf32|f16|bf16)_(\d+x\d+x\d+)", product),
    (r"conv_(\d+)x\d+(?:s(\d+))?(?:g(\d+))?_(\d+)x(\d+)_(\d+)", conv),
    (r"depthwise_(\d+)x\d+(?:s(\d+))?_(\d+)x(\d+)", depthwise),
    (r"conv3d_(\d+)x\d+x\d+_(\d+)x(\d+)_(\d+)", conv3d),
    (r"conv_transpose_(\d+)x\d+s(\d+)_(\d+)x(\d+)_(\d+)", conv_transpose),
    (r"attention_(\d+x\d+x\d+)", attention),
    (r"layer_norm_(\d+x\d+)", layer_norm),
    (r"softmax_(\d+(?:x\d+)*)", softmax),
    (r"max_pool_(\d+)x\d+s(\d+)_(\d+)x(\d+)", max_pool),
    (r"global_pool_(\d+x\d+)", global_pool),
]


def operator(name):
    for pattern, build in OPERATORS:
        match = re.fullmatch(pattern, name)
        if match:
            return build(match)
    return None


def network(name, device):
    """A network's function, and its one argument in a list."""
    if name in TORCHVISION:
        import torchvision

        model = getattr(torchvision.models, TORCHVISION[name])(weights=None).eval().to(device)
        return model, [torch.randn(1, 3, 224, 224, device=device)]
    if name in BERT:
        from transformers import BertConfig, BertModel

        layers, width, heads = BERT[name]
        config = BertConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width)
        model = BertModel(config, add_pooling_layer=False).eval().to(device)
        return (lambda ids: model(input_ids=ids).last_hidden_state), [torch.randint(0, config.vocab_size, (1, 128), device=device)]
    raise KeyError(f"{name}: neither an operator nor a network that is known here")


def recorded(function, copies):
    """Runs over all copies as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function(*copies[0])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in copies:
            function(*arguments)
    return graph


def times_ms(graph, runs, seconds):
    """Of a run each, by the device's clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found, started = [], time.perf_counter()
    graph.replay()
    while not found or time.perf_counter() - started < seconds:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / runs)
    return found


def ours_ms(command, name):
    words = shlex.split(command.format(name=name))
    ran = subprocess.run(words, capture_output=True, text=True)
    try:
        return json.loads(ran.stdout.strip().splitlines()[-1])["min_ms"]
    except (IndexError, KeyError, ValueError):
        print(f"{name}: {words[0]} ended with {ran.returncode}: {(ran.stderr.strip().splitlines() or ['nothing said'])[-1]}", file=sys.stderr)
        return None


def contestants(name, device, compiling):
    """Graphs by name, how many runs each holds, and the operations of a run."""
    work = operator(name)
    if work:
        function, copies, flops = work.function, work.copies(device), work.flops
    else:
        (function, arguments), flops = network(name, device), None
        copies = [arguments]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = work is None or work.tf32
    graphs = {"eager": recorded(function, copies)}
    if compiling:
        torch.compiler.reset()
        compiled = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
        try:
            graphs["compiled"] = recorded(compiled, copies)
        except Exception as error:  # of any kind: the compiler's own, Triton's, CUDA's
            print(f"{name}: PyTorch does not compile it: {error}", file=sys.stderr)
    return graphs, len(copies), flops


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--ours", required=True, metavar="CMD")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--compile-seconds", type=float, default=150.0)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU that PyTorch can use", file=sys.stderr)
        sys.exit(3)
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    left = args.compile_seconds
    rows, ratios = [], []
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(device)}\n")
    print("| | PyTorch | compiled | Tilescribe | best PyTorch / ours | TFLOP/s |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in args.names:
        started = time.perf_counter()
        try:
            with torch.no_grad():
                graphs, runs, flops = contestants(name, device, left > 0)
        except KeyError as unknown:
            print(unknown.args[0], file=sys.stderr)
            continue
        left -= time.perf_counter() - started
        times = {contestant: [] for contestant in graphs}
        ours = []
        for _ in range(args.rounds):
            for contestant, graph in graphs.items():
                times[contestant] += times_ms(graph, runs, args.seconds)
            ours.append(ours_ms(args.ours, name))
        del graphs
        torch.cuda.empty_cache()
        row = {"name": name, **{contestant: min(found) for contestant, found in times.items()}}
        own = min((found for found in ours if found), default=None)
        if own:
            row["ours"] = own
            row["ratio"] = min(min(found) for found in times.values()) / own
            ratios.append(row["ratio"])
        cells = [f"{row[key]:.4f}" if key in row else "" for key in ("eager", "compiled", "ours")]
        cells += [f"{row['ratio']:.2f}" if own else "", f"{flops / own / 1e9:.1f}" if own and flops else ""]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        rows.append(row)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    if ratios:
        print(f"\nBest PyTorch / ours: geometric mean {statistics.geometric_mean(ratios):.3f}, the lowest {min(ratios):.2f}.")


if __name__ == "__main__":
    main()
