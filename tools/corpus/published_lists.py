"""Reads the lists of shapes that oneDNN and DeepBench publish, and chooses of them by a rule.

The lists are read at the commits below out of git directories, bare ones, too. Both are licensed under
Apache-2.0. Shapes alone are taken from them: no file, and no name but those of the lists.

The rule, which knows of no time and of no program:

1. A line is read as its driver reads it. Left out are lines with options, what multiplies batches that are
   not equal, a padding below zero that changes the result, pooling of padding alone, and what reads and
   writes more than 64 MB.
2. The minibatch of images is cut to 8, and any minibatch halved until the work is at most the limit (400
   Mflop for tests, 250 for training). It is that of images, that of batched products, and the rows of a
   product by constants. What is below 1 Mflop or cannot be cut so far is left out.
3. Lines that differ in nothing but the minibatch count as one shape, wherever they stand. Of the lines of
   shape number i the one at i modulo their number is taken. A shape belongs to the list that has it first.
4. Of each list at most 12 shapes stay, evenly spaced.
5. Of the shapes of each kind, in the order of lists and lines, every k-th is a test, from the k/2-th on,
   where k is such that the number of QUOTAS comes out. All others are for training.
6. Bias, activation: what the network behind the list has (ENDINGS), else none, a bias, and a bias with a
   ReLU in turn by the number of the line. Pooling is an average where the line's name says so.
"""
import math
import re
import subprocess

ONEDNN = ("oneDNN", "3f27bec21fdce6b550f233bf6e0afd086ee8d543", "tests/benchdnn/inputs")
DEEPBENCH = ("DeepBench", "da81ba7820739e2e506dc27f382d15be5479f98f", "code/kernels")

KINDS = ["convolution", "depthwise", "product", "batched product", "inner product", "pooling"]
QUOTAS = {"convolution": 40, "depthwise": 15, "product": 16, "batched product": 8, "inner product": 14, "pooling": 16}
TEST_MFLOP, TRAINING_MFLOP, LEAST_MFLOP = 400, 250, 1
MOST_IMAGES, MOST_BYTES, OF_EACH_LIST = 8, 64e6, 12

# What stands behind a layer of the network that a list is named after: the first that fits.
ENDINGS = [
    (r"_bwd_", ""),
    (r"densnet|bert|transformer|gnmt|rnn|vit$|ffn|wavenet|cosmictagger|stable_diffusion|dien", "bias"),
    (r"yolo", "bias leaky"),
    (r"alexnet|vgg|googlenet|resnet|resnext|ssd_|rcnn|unet|xception|mobilenet|segnet|pointnet|i3d|a3c|dlrm|ncf"
     r"|_wd(_|$)|movinet|x3d|efficientdet", "bias relu"),
]
IN_TURN = ["", "bias", "bias relu"]


class Unusable(Exception):
    """A line that the rule leaves out."""


def lines(repository, source, folder, pattern):
    """(list, line number, line) of the files below `folder` whose name matches, sorted."""
    project, commit, root = source

    def git(*words):
        return subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True, text=True).stdout

    for path in sorted(git("ls-tree", "--name-only", commit, f"{root}/{folder}").split()):
        if re.search(pattern, path):
            for number, line in enumerate(git("show", f"{commit}:{path}").splitlines(), 1):
                yield path, number, line.strip()


def described(text):
    """The entries and axes of a problem of oneDNN, `mb1ic64ih56oc64kh3ph1`, with those that are left to its driver."""
    entries, at = {}, 0
    token = re.compile(r"_*(g|mb|ic|oc|[iokspd][dhw])(\d+)_*")
    while at < len(text) and text[at] != "n":
        match = token.match(text, at)
        if not match:
            raise Unusable(text)
        entries[match[1]], at = int(match[2]), match.end()
    # an axis that is not mentioned is like the one before it
    axes = "dhw"
    first = next((axes.index(a) for a in axes if f"i{a}" in entries), None)
    if first is None:
        return entries, []
    for before, axis in zip(axes[first:], axes[first + 1:]):
        if not any(f"{what}{axis}" in entries for what in "iokspd"):
            like = {f"{what}{axis}": entries.get(f"{what}{before}") for what in "iokspd"}
            entries |= {name: value for name, value in like.items() if value is not None}
    return entries, list(axes[first:])


def window(entries, axes):
    """size, kernel, stride, before, after, dilation: an extent for each axis."""
    columns = {what: [] for what in ["size", "kernel", "stride", "before", "after", "dilation"]}
    for axis in axes:
        size, kernel = entries.get(f"i{axis}", 0), entries.get(f"k{axis}", 0)
        stride, dilation = entries.get(f"s{axis}", 1), entries.get(f"d{axis}", 0) + 1
        out, before = entries.get(f"o{axis}", 0), entries.get(f"p{axis}", -1)
        if size == 0 or kernel == 0:
            raise Unusable("an axis without a size")
        extent = (kernel - 1) * dilation + 1
        if out == 0:
            before = max(before, 0)
            out = (size - extent + 2 * before) // stride + 1
        elif before < 0:
            before = int(((out - 1) * stride - size + extent) / 2)
        after = max(0, (out - 1) * stride + extent - size - before)
        if before < 0 or out < 1 or (size + before + after - extent) // stride + 1 != out:
            raise Unusable("a padding below zero")
        for what, value in zip(columns, [size, kernel, stride, before, after, dilation]):
            columns[what].append(value)
    return columns


def image(kind, entries, axes, outputs):
    shape = {"kind": kind, "batch": entries.get("mb", 2), "groups": entries.get("g", 1)}
    return shape | {"inputs": entries["ic"], "outputs": outputs} | window(entries, axes)


def convolution(text):
    entries, axes = described(text)
    if not axes or entries["ic"] % entries.get("g", 1) or entries["oc"] % entries.get("g", 1):
        raise Unusable("no convolution")
    groups = entries.get("g", 1)
    kind = "depthwise" if groups > 1 and groups == entries["ic"] else "convolution"
    return image(kind, entries, axes, entries["oc"])


def pooling(text):
    entries, axes = described(text)
    if not axes:
        raise Unusable("no pooling")
    shape = image("pooling", entries, axes, entries["ic"])
    if any(pad >= kernel for side in ["before", "after"] for pad, kernel in zip(shape[side], shape["kernel"])):
        raise Unusable("windows that hold nothing")
    return shape


def product(rows, inputs, outputs, kind="product", batch=1):
    return {"kind": kind, "batch": batch, "groups": 1, "inputs": inputs, "outputs": outputs, "size": [rows]}


def inner_product(text):
    entries, axes = described(text)
    inputs = entries["ic"] * math.prod(entries[f"i{axis}"] for axis in axes)
    return product(entries.get("mb", 2), inputs, entries["oc"], "inner product")


def matmul(text):
    match = re.match(r"([\dx]+):([\dx]+)(?=$|[_n:])", text)
    if not match:
        raise Unusable(text)
    left, right = ([int(n) for n in side.split("x")] for side in match.groups())
    if len(left) != len(right) or len(left) < 2 or left[:-2] != right[:-2] or left[-1] != right[-2]:
        raise Unusable("batches that are not equal")
    batch = math.prod(left[:-2])
    return product(left[-2], left[-1], right[-1], "batched product" if len(left) > 2 else "product", batch)


def deepbench(path, text):
    """A tuple of DeepBench, whose matrices have the minibatch as their columns."""
    match = re.match(r"std::make_tuple\((.*)\)", text)
    if not match:
        raise Unusable(text)
    values = [value.strip() for value in match[1].split(",")]
    numbers = [int(value) for value in values if value.isdigit()]
    if path.endswith("conv_problems.h"):
        w, h, c, n, k, kw, kh, pw, ph, sw, sh = numbers
        entries = {"mb": n, "ic": c, "ih": h, "iw": w, "kh": kh, "kw": kw, "ph": ph, "pw": pw, "sh": sh, "sw": sw}
        return image("convolution", entries, "hw", k)
    if path.endswith("/gemm_problems.h"):
        outputs, rows, inputs = numbers
        return product(rows, inputs, outputs)
    hidden, rows, _ = numbers
    gates = {'"vanilla"': 1, '"gru"': 3, '"lstm"': 4}[values[3]]
    return product(rows, hidden, gates * hidden)


def published(onednn, deepbench_repository):
    """(source, list, line number, shape, line) of every usable line, DeepBench's first."""
    readers = {"conv": convolution, "matmul": matmul, "ip": inner_product, "pool": pooling}
    for path, number, line in lines(deepbench_repository, DEEPBENCH, "", r"/(conv|gemm|rnn)_problems\.h$"):
        try:
            yield DEEPBENCH, path, number, deepbench(path, line), line
        except Unusable:
            continue
    for folder, read in readers.items():
        for path, number, line in lines(onednn, ONEDNN, f"{folder}/", r"/shapes_"):
            try:
                if line and line[0] not in "#-":
                    yield ONEDNN, path, number, read(line), line
            except Unusable:
                continue


def results(shape):
    """The extents of an image that a shape gives."""
    columns = (shape[what] for what in ["size", "kernel", "stride", "before", "after", "dilation"])
    return [(i + b + a - (k - 1) * d - 1) // s + 1 for i, k, s, b, a, d in zip(*columns)]


def mflop(shape):
    if "kernel" not in shape:
        return 2e-6 * shape["batch"] * shape["size"][0] * shape["inputs"] * shape["outputs"]
    steps = math.prod(shape["kernel"]) * (1 if shape["kind"] == "pooling" else 2 * shape["inputs"] // shape["groups"])
    return 1e-6 * shape["batch"] * shape["outputs"] * math.prod(results(shape)) * steps


def bytes_of(shape):
    batch, inputs, outputs = shape["batch"], shape["inputs"], shape["outputs"]
    if "kernel" not in shape:
        rows = shape["size"][0]
        return 4 * batch * (rows * inputs + inputs * outputs + rows * outputs)
    weights = 0 if shape["kind"] == "pooling" else outputs * inputs // shape["groups"] * math.prod(shape["kernel"])
    return 4 * (weights + batch * (inputs * math.prod(shape["size"]) + outputs * math.prod(results(shape))))


def cut(shape, limit):
    """The shape with a minibatch that the limit allows, or None."""
    by_rows = shape["kind"] in ("product", "inner product")
    most = shape["size"][0] if by_rows else shape["batch"]
    most = min(most, MOST_IMAGES) if "kernel" in shape else most
    while most >= 1:
        smaller = shape | ({"size": [most]} if by_rows else {"batch": most})
        if mflop(smaller) <= limit:
            return smaller if mflop(smaller) >= LEAST_MFLOP and bytes_of(smaller) <= MOST_BYTES else None
        most //= 2
    return None


def without_minibatch(shape):
    """What is the same for two lines that are one shape."""
    kind = "product" if shape["kind"] == "inner product" else shape["kind"]
    rows = shape["size"] if shape["kind"] not in ("product", "inner product") else []
    rest = [shape[what] for what in ["groups", "inputs", "outputs"]] + rows
    return (kind, *rest, *(tuple(shape.get(what, [])) for what in ["kernel", "stride", "before", "after", "dilation"]))


def ending(path, number, shape, line):
    """What is computed behind the shape, and for pooling of which kind it is."""
    name = path.rsplit("/", 1)[1]
    if shape["kind"] == "pooling":
        called = re.search(r"n\"?([a-z]\w*:?.*)", line)
        return "average" if (re.search(r"av[eg]", called[1]) if called else number % 2) else "max"
    if shape["kind"] == "batched product":
        return ""
    return next((what for pattern, what in ENDINGS if re.search(pattern, name)), IN_TURN[number % len(IN_TURN)])


def evenly(items, count):
    return items if len(items) <= count else [items[i * len(items) // count] for i in range(count)]


def choose(onednn, deepbench_repository):
    """(tests, shapes for training), each a list of rows: name, source, and the columns of a shape."""
    same = {}
    for source, path, number, shape, line in published(onednn, deepbench_repository):
        if cut(shape, TEST_MFLOP):
            same.setdefault(without_minibatch(shape), []).append((source, path, number, shape, line))
    lists = {}
    for i, group in enumerate(same.values()):
        lists.setdefault(group[0][:2], []).append(group[i % len(group)])
    kinds = {kind: [] for kind in KINDS}
    for members in lists.values():
        for (project, _, root), path, number, shape, line in evenly(members, OF_EACH_LIST):
            place = path.removeprefix(f"{root}/").removesuffix(".h").replace("/shapes_", "_")
            place = re.sub("[/-]", "_", place)
            row = {"name": f"{project.lower()}_{place}_{number}", "source": f"{project} {path}:{number}"}
            kinds[shape["kind"]].append((row, shape | {"ending": ending(path, number, shape, line)}))
    tests, training = [], []
    for kind, rows in kinds.items():
        step = max(1, len(rows) // QUOTAS[kind])
        for i, (row, shape) in enumerate(rows):
            is_test = i % step == step // 2 and i // step < QUOTAS[kind]
            smaller = cut(shape, TEST_MFLOP if is_test else TRAINING_MFLOP)
            if smaller:
                (tests if is_test else training).append(row | smaller)
    return tests, training
