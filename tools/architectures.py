#!/usr/bin/env python3
"""Exports architectures of transformers and torchvision, small, and holds each to ONNX Runtime.

usage: architectures.py [--exporter legacy|dynamo] [--cache DIR] [--json OUT] [NAME ...]

NAME: `bert` and whatever else `transformers.AutoConfig.for_model` knows, or `tv:alexnet` and whatever else
`torchvision.models` knows; no name: all of the table below. Configurations are made small (two layers of
width 64) where they allow it; batches, lengths of text and samples of sound stay open. Every network is
compiled by `target/release/tilescribe compile --trials-per-task 0`, without any other flag, and run on random
inputs; results have to agree within 1e-3 of each output's largest magnitude. What PyTorch cannot export, or
ONNX Runtime cannot run, is skipped. Prints a line for each. Exit code: 1 if a network that compiles is wrong,
else 0.
Needs torch, torchvision, transformers, onnx, onnxscript and onnxruntime; an hour on two cores.
"""
import argparse
import inspect
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "target" / "release" / "tilescribe"
TOLERANCE = 1e-3
LEAST_MAGNITUDE = 1e-3
MOST_PARAMETERS = 120_000_000
BATCH, TOKENS, SAMPLES = 2, 24, 4000

NAMES = """
bert roberta distilbert electra mobilebert deberta deberta-v2 mpnet squeezebert longformer big_bird xlm albert
nystromformer fnet convbert roformer ernie layoutlm rembert modernbert mra yoso ibert megatron-bert eurobert
gpt2 gpt_neo gptj gpt_neox opt bloom falcon mistral mixtral phi phi3 gemma gemma2 gemma3_text llama qwen2
qwen3 qwen2_moe qwen3_moe stablelm codegen mamba mamba2 rwkv starcoder2 olmo olmo2 granite cohere persimmon
recurrent_gemma deepseek_v3 smollm3 glm exaone4 lfm2 falcon_mamba openai-gpt ctrl biogpt xglm mpt nemotron
bart t5 mbart pegasus m2m_100 marian led blenderbot prophetnet longt5 umt5 switch_transformers fsmt plbart vit
deit beit data2vec-vision dinov2 dinov3_vit swin swinv2 convnext convnextv2 resnet regnet levit mobilevit
mobilevitv2 efficientnet poolformer cvt pvt pvt_v2 segformer dpt glpn detr conditional_detr deformable_detr
yolos rt_detr maskformer mask2former upernet focalnet van mobilenet_v1 mobilenet_v2 swiftformer timesformer
videomae vivit hiera depth_anything superpoint swin2sr vit_msn ijepa textnet vitdet vitpose_backbone hgnet_v2
wav2vec2 hubert sew sew-d unispeech-sat wavlm whisper audio-spectrogram-transformer speech_to_text
wav2vec2-conformer wav2vec2-bert data2vec-audio encodec dac moonshine mimi clip siglip blip align owlvit
groupvit bridgetower chinese_clip clipseg altclip vilt layoutlmv3 visual_bert siglip2 patchtst patchtsmixer
tv:alexnet tv:vgg11_bn tv:wide_resnet50_2 tv:deeplabv3_mobilenet_v3_large tv:fcn_resnet50
tv:lraspp_mobilenet_v3_large tv:r3d_18 tv:r2plus1d_18 tv:mvit_v1_b tv:swin3d_t tv:raft_small
tv:retinanet_resnet50_fpn tv:maskrcnn_resnet50_fpn
""".split()

WIDTH, INNER, LAYERS, HEADS, VOCABULARY = 64, 128, 2, 4, 1000
# What configurations call their sizes.
SMALL = {
    **dict.fromkeys((
        "num_hidden_layers", "encoder_layers", "decoder_layers", "n_layer", "num_layers", "n_layers",
        "num_encoder_layers", "num_decoder_layers", "num_experts_per_tok", "num_key_value_heads",
    ), LAYERS),
    **dict.fromkeys((
        "hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size", "image_size",
        "moe_intermediate_size", "attention_hidden_size",
    ), WIDTH),
    **dict.fromkeys((
        "num_attention_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads",
        "num_heads", "num_experts", "num_local_experts", "n_routed_experts",
    ), HEADS),
    **dict.fromkeys((
        "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim", "n_inner", "hidden_dim",
        "max_position_embeddings", "n_positions", "n_ctx",
    ), INNER),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim", "kv_lora_rank"), WIDTH // HEADS),
    **dict.fromkeys(("rotary_dim", "qk_rope_head_dim", "state_size"), 8),
    "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1,
    "eos_token_id": 2, "q_lora_rank": 32, "max_source_positions": 100, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    # what is drawn at random would differ
    "noise_scale": 0.0, "noise_scale_duration": 0.0,
    "attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"],
}


class Skipped(Exception):
    """What is not ours to mend."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--exporter", choices=["legacy", "dynamo"], default="legacy")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "target" / "architectures")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--export", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.export:
        export(options.names[0], options.exporter, options.export)
        return 0
    options.cache.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.names or NAMES:
        file = options.cache / f"{name.replace(':', '_')}.{options.exporter}.onnx"
        try:
            row = {"difference": compared(name, file, options.exporter)}
            outcome = f"{row['difference']:.1e}{'' if row['difference'] <= TOLERANCE else '  WRONG'}"
        except Skipped as why:
            row, outcome = {"skipped": str(why)}, f"skipped: {why}"
        except RuntimeError as why:
            row, outcome = {"refused": str(why)}, f"refused: {why}"
        print(f"{name:<36} {outcome[:220]}", flush=True)
        rows.append({"name": name, "exporter": options.exporter, **row})
    count = lambda key: sum(key in row for row in rows)
    wrong = sum(row.get("difference", 0) > TOLERANCE for row in rows)
    right = count("difference") - wrong
    print(f"{len(rows)} architectures: {right} right, {wrong} wrong, {count('refused')} refused, "
          f"{count('skipped')} skipped")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(wrong > 0)


def compared(name, file, exporter):
    """The largest difference of any output, relative to its largest magnitude."""
    import onnxruntime

    arrays = file.with_suffix(".npz")
    if not (file.exists() and arrays.exists()):
        run([sys.executable, __file__, name, "--exporter", exporter, "--export", file], 300, Skipped)
    inputs = dict(np.load(arrays))
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    # as the file says: fused operators of its own round in another way
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        expected = dict(zip((output.name for output in session.get_outputs()), session.run(None, inputs)))
    except Exception as error:
        raise Skipped(f"ONNX Runtime: {str(error).splitlines()[0]}") from error
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        folder = pathlib.Path(folder)
        unmeasured = ["--trials-per-task", "0", "--store", folder / "records.db"]
        run([BINARY, "compile", file, "-o", folder / "net", *unmeasured], 900, RuntimeError)
        given = []
        for at, (input_name, array) in enumerate(inputs.items()):
            np.save(folder / f"{at}.npy", array)
            given += ["--input", f"{input_name}={folder / f'{at}.npy'}"]
        run([BINARY, "run", folder / "net", *given, "--output-dir", folder / "out"], 300, RuntimeError)
        plain = lambda text: text.replace("%3A", ":").replace("%2F", "/").replace("/", "_")
        found = {plain(file.stem): np.load(file) for file in (folder / "out").glob("*.npy")}
    return max(difference(found[plain(output)], array) for output, array in expected.items())


def difference(ours, theirs):
    if ours.shape != theirs.shape or (np.isfinite(ours) != np.isfinite(theirs)).any():
        return float("inf")
    if theirs.size == 0:
        return 0.0
    if theirs.dtype.kind in "biu":
        return float((ours != theirs).mean())
    finite = np.isfinite(theirs)
    largest = np.abs(theirs[finite]).max(initial=LEAST_MAGNITUDE)
    return float(np.abs(ours[finite] - theirs[finite]).max(initial=0.0) / largest)


def run(command, seconds, failure):
    try:
        words = [str(part) for part in command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise failure(f"more than {seconds} s") from error
    if done.returncode != 0:
        raise failure((done.stderr.strip().splitlines() or ["no message"])[-1])


def export(name, exporter, file):
    """Writes a network, and a file of its inputs beside it."""
    import onnx
    import torch

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = (torchvision_module(name[3:]) if name.startswith("tv:") else transformers_module(name)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1 and not parameter.any():  # a head of zeros would hide every error
                torch.nn.init.normal_(parameter, std=0.02)
    inputs, axes = example_inputs(module, name)
    flat = flattened(module, list(inputs))
    values = tuple(inputs.values())
    with torch.no_grad():
        flat(*values)
        names = None if any(isinstance(value, list) for value in values) else list(inputs)
        if exporter == "legacy":
            torch.onnx.export(flat, values, file, dynamo=False, opset_version=17, input_names=names,
                              dynamic_axes={key: of for key, of in axes.items() if of} or None)
        else:
            opened = lambda key: {axis: torch.export.Dim.DYNAMIC for axis in axes.get(key, {})} or None
            shapes = (tuple(opened(key) for key in inputs),)
            torch.onnx.export(flat, values, file, dynamo=True, input_names=names, dynamic_shapes=shapes, verbose=False)
    graph = onnx.load(file, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    taken = [value.name for value in graph.input if value.name not in constants]
    tensors = [tensor for value in values for tensor in (value if isinstance(value, list) else [value])]
    if len(tensors) != len(taken):
        tensors = [tensor for key, tensor in inputs.items() if key in taken]
    np.savez(file.with_suffix(".npz"), **{key: tensor.numpy() for key, tensor in zip(taken, tensors)})


def torchvision_module(name):
    import torchvision

    takes = inspect.signature(torchvision.models.get_model_builder(name)).parameters
    extra = {"weights_backbone": None} if "weights_backbone" in takes else {}
    return torchvision.models.get_model(name, weights=None, **extra)


def transformers_module(name):
    import torch
    from transformers import AutoConfig, AutoModel

    why = None
    for is_small in (True, False):
        try:
            config = AutoConfig.for_model(name)
            if is_small:
                shrink(config)
            config._attn_implementation = "eager"
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
            if size > MOST_PARAMETERS:
                raise ValueError(f"{size / 1e6:.0f} million parameters")
            return AutoModel.from_config(config)
        except Exception as error:  # sizes that do not fit one another, of whatever kind
            why = error
    raise SystemExit(f"no model: {why}")


def shrink(config, depth=0):
    from transformers import PretrainedConfig

    for key, value in SMALL.items():
        own = getattr(config, key, None)
        if type(own) is type(value):
            setattr(config, key, value)
    for inner in list(vars(config).values()):
        if isinstance(inner, PretrainedConfig) and depth < 3:
            shrink(inner, depth + 1)
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = config.layer_types[:LAYERS]


def example_inputs(module, name):
    """Inputs of a module by name, and by name what their open axes are called."""
    import torch

    takes, config = inspect.signature(module.forward).parameters, getattr(module, "config", None)
    inputs, axes = {}, {}

    def add(key, value, open_axes):
        if key in takes:
            inputs[key], axes[key] = value, open_axes

    tokens = lambda: torch.randint(5, VOCABULARY - 100, (BATCH, TOKENS))
    text = {0: "batch", 1: "sequence"}
    if "input_ids" in takes:
        add("input_ids", tokens(), text)
        add("attention_mask", torch.ones(BATCH, TOKENS, dtype=torch.int64), text)
    if "pixel_values" in takes:
        inner = [getattr(config, key, None) for key in ("vision_config", "backbone_config")]
        parts = [part for part in (config, *inner) if part]
        own = lambda key, default: next((value for part in parts if (value := getattr(part, key, None))), default)
        side, channels = own("image_size", 64), own("num_channels", 3)
        size = list(side) if isinstance(side, (list, tuple)) else [side, side]
        add("pixel_values", torch.randn(BATCH, channels, *size), {0: "batch"})
    if "input_values" in takes:
        if "spectrogram" in name:
            add("input_values", torch.randn(BATCH, config.max_length, config.num_mel_bins), {0: "batch"})
        elif name in ("encodec", "dac", "mimi"):
            add("input_values", torch.randn(BATCH, 1, 4096), {0: "batch"})
        else:
            add("input_values", torch.randn(BATCH, SAMPLES), {0: "batch", 1: "samples"})
    if "input_features" in takes and "input_ids" not in takes:
        named = ("num_mel_bins", "input_feat_per_channel", "feature_size")
        bins = next((getattr(config, key) for key in named if hasattr(config, key)), 80)
        shape = (BATCH, bins, 200) if name == "whisper" else (BATCH, 96, bins)
        add("input_features", torch.randn(*shape), {0: "batch"})
    if inputs:
        add("decoder_input_ids", tokens(), {0: "batch", 1: "decoded"})
    if "past_values" in takes:
        shape = (BATCH, getattr(config, "context_length", 32), getattr(config, "num_input_channels", 1))
        add("past_values", torch.randn(*shape), {0: "batch"})
    if not inputs:
        kind, first = type(module).__module__, next(iter(takes))
        if "detection" in kind:
            return {first: [torch.rand(3, 320, 320)]}, {}
        if "optical_flow" in kind:
            return {key: torch.randn(1, 3, 128, 128) for key in ("image1", "image2")}, {}
        if "video" in kind:
            side = 224 if "swin" in name or "mvit" in name else 112
            return {first: torch.randn(1, 3, 16, side, side)}, {}
        return {first: torch.randn(1, 3, 224, 224)}, {first: {0: "batch"}}
    return inputs, axes


def flattened(module, names):
    """The module with a tuple of its first tensors for a result."""
    import torch

    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *values):
            takes = inspect.signature(self.module.forward).parameters
            extra = {key: value for key, value in (("use_cache", False), ("return_dict", True)) if key in takes}
            found = []

            def walk(value):
                if isinstance(value, torch.Tensor):
                    if value.numel() and all(value is not other for other in found):
                        found.append(value)
                    return
                if hasattr(value, "values"):
                    value = list(value.values())
                for part in value if isinstance(value, (list, tuple)) else []:
                    walk(part)

            walk(self.module(**dict(zip(names, values)), **extra))
            return tuple(found[:4])

    return Flat().eval()


if __name__ == "__main__":
    sys.exit(main())
