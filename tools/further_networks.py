#!/usr/bin/env python3
"""Exports published architectures that nothing was tuned on, to see whether speed holds beyond the benchmarks'.

usage: further_networks.py [--legacy] [--open] OUT_DIR [NAME ...]      (no name: all)

Architectures of torchvision and transformers, a U-Net and a Darknet, exported by PyTorch with seeded random
weights; timm/NAME is an architecture of timm, and timm/ stands for one of each of many families of it. Smaller
relatives of some (convnext, googlenet, regnet, shufflenet) are among the networks of the corpus, at other sizes.
--legacy: by tracing, as most published files were. --open: images with batch, height and width that a run says;
timm/ stands for families that take images of any size, then. What cannot be exported so is told of, and left out.
Needs torch, torchvision, transformers and onnxscript, for some timm.
"""
import argparse
import pathlib

import torch
from torch import nn

# name: side of the square image
IMAGE_NETS = {
    "mobilenet_v3_large": 224,
    "shufflenet_v2_x1_0": 224,
    "regnet_x_800mf": 224,
    "convnext_tiny": 224,
    "swin_v2_t": 256,
    "googlenet": 224,
    "inception_v3": 299,
    "mnasnet1_0": 224,
    "efficientnet_v2_s": 224,
    "maxvit_t": 224,
}
TOKENS = 128

# model type of transformers: what differs from its defaults, and the input's shape (of tokens: how many)
HUB_NETS = {
    "segformer": ({"num_labels": 19}, (1, 3, 256, 256)),
    "mobilevit": ({}, (1, 3, 256, 256)),
    "levit": ({}, (1, 3, 224, 224)),
    "poolformer": ({}, (1, 3, 224, 224)),
    "convnextv2": ({"hidden_sizes": [40, 80, 160, 320], "depths": [2, 2, 6, 2]}, (1, 3, 224, 224)),
    "pvt_v2": ({}, (1, 3, 224, 224)),
    "swin": ({}, (1, 3, 224, 224)),
    "yolos": ({"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "image_size": [256, 256]},
              (1, 3, 256, 256)),
    "depth_anything": ({}, (1, 3, 252, 252)),
    "wav2vec2": ({"num_hidden_layers": 4}, (1, 16000)),
    "deberta-v2": ({
        "hidden_size": 768, "num_hidden_layers": 3, "num_attention_heads": 12, "intermediate_size": 3072,
        "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1, "position_biased_input": False,
        "type_vocab_size": 0, "vocab_size": 8000,
    }, TOKENS),
    "mobilebert": ({"num_hidden_layers": 6, "vocab_size": 8000}, TOKENS),
    "mamba": ({"hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 4000, "use_cache": False}, 64),
}
TIMM_NETS = """
ghostnet_100 efficientvit_b0 efficientvit_m0 repvit_m0_9 starnet_s1 fastvit_t8 edgenext_small
mobilenetv4_conv_small efficientformerv2_s0 efficientvim_m1 shvit_s1 swiftformer_xs tiny_vit_5m_224
xcit_nano_12_p16_224 crossvit_9_240 convit_tiny eva02_tiny_patch14_224 coat_lite_mini pit_ti_224
lambda_resnet26t botnet26t_256 skresnet18 res2net50_14w_8s resnest14d sequencer2d_s gmlp_s16_224 resmlp_12_224
tnt_s_patch16_224 mvitv2_tiny gcvit_xxtiny mambaout_femto inception_next_atto hgnetv2_b0 lcnetv2_small
rexnet_100
""".split()
OPEN_TIMM_NETS = """
resnet18 resnext26ts seresnext26t_32x4d efficientnet_lite0 mobilenetv3_small_100 mobilenetv4_conv_small regnety_002
convnext_atto convnextv2_atto convnext_femto_ols densenet121 dla34 dpn48b ese_vovnet19b_dw fbnetc_100 gernet_s
ghostnet_050 hardcorenas_a hrnet_w18_small lcnet_050 mnasnet_small mixnet_s repvgg_a0 res2net50_26w_4s rexnet_100
selecsls42b skresnet18 spnasnet_100 tinynet_e tf_efficientnetv2_b0 xception41 inception_v3 nf_regnet_b0 nfnet_l0
botnet26t_256 halonet26t lambda_resnet26t eca_botnext26ts_256 sebotnet33ts_256 mobileone_s0 fastvit_t8
edgenext_xx_small mobilevit_xxs mobilevitv2_050 poolformer_s12 poolformerv2_s12 caformer_s18 repvit_m0_9 starnet_s1
rdnet_tiny inception_next_atto
""".split()
HEADS = {"segformer": "AutoModelForSemanticSegmentation", "depth_anything": "AutoModelForDepthEstimation"}


class First(nn.Module):
    """The first tensor of a module's result."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x, return_dict=True)[0]


class Output(nn.Module):
    """The one tensor of a module's result that counts."""

    def __init__(self, module, name):
        super().__init__()
        self.module, self.name = module, name

    def forward(self, x):
        return self.module(x)[self.name]


def convolutions(before, behind):
    layers = []
    for channels in (before, behind):
        layers += [nn.Conv2d(channels, behind, 3, padding=1, bias=False), nn.BatchNorm2d(behind), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Ronneberger et al. 2015, padded, with half of the channels."""

    def __init__(self, channels=(32, 64, 128, 256, 512)):
        super().__init__()
        pairs = list(zip(channels, channels[1:]))
        self.first = convolutions(3, channels[0])
        self.down = nn.ModuleList(convolutions(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.join = nn.ModuleList(convolutions(2 * a, a) for a, _ in reversed(pairs))
        self.head = nn.Conv2d(channels[0], 2, 1)

    def forward(self, x):
        seen = [self.first(x)]
        for block in self.down:
            seen.append(block(nn.functional.max_pool2d(seen[-1], 2)))
        x = seen.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([up(x), seen.pop()], 1))
        return self.head(x)


class Darknet(nn.Module):
    """The backbone of YOLO (Redmon and Farhadi 2018), with half of its blocks: strided convolutions reduce."""

    def __init__(self, stages=((64, 1), (128, 2), (256, 4), (512, 4), (1024, 2))):
        super().__init__()
        self.first, before = self.convolution(3, 32, 3, 1), 32
        self.reduce, self.blocks = nn.ModuleList(), nn.ModuleList()
        for channels, count in stages:
            self.reduce.append(self.convolution(before, channels, 3, 2))
            inner = channels // 2
            self.blocks.append(nn.ModuleList(
                nn.Sequential(self.convolution(channels, inner, 1, 1), self.convolution(inner, channels, 3, 1))
                for _ in range(count)
            ))
            before = channels

    @staticmethod
    def convolution(before, behind, window, stride):
        convolution = nn.Conv2d(before, behind, window, stride, window // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(behind), nn.LeakyReLU(0.1))

    def forward(self, x):
        x = self.first(x)
        for reduce, blocks in zip(self.reduce, self.blocks):
            x = reduce(x)
            for block in blocks:
                x = x + block(x)
        return x.mean((2, 3))


def image_net(name):
    import torchvision

    side = IMAGE_NETS[name]
    # what only training needs is left out
    extra = {"googlenet": {"init_weights": False, "aux_logits": False}, "inception_v3": {"init_weights": False}}
    model = getattr(torchvision.models, name)(weights=None, **extra.get(name, {}))
    return model, torch.randn(1, 3, side, side)


def lraspp():
    import torchvision

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)
    return Output(model, "out"), torch.randn(1, 3, 320, 320)


def text_net(name):
    import transformers as hf

    eager = {"attn_implementation": "eager"}
    if name == "t5_small_enc":
        config = hf.T5Config(d_model=512, d_ff=2048, num_layers=6, num_heads=8, use_cache=False)
        model = hf.T5EncoderModel(config)
    elif name == "albert":
        config = hf.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072, **eager)
        model = hf.AlbertModel(config, add_pooling_layer=False)
    elif name == "modernbert":
        sizes = {"num_hidden_layers": 8, "hidden_size": 384, "intermediate_size": 576, "num_attention_heads": 6}
        model = hf.ModernBertModel(hf.ModernBertConfig(**sizes, **eager))
    else:
        sizes = {"num_hidden_layers": 6, "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8}
        heads = {"num_key_value_heads": 4, "head_dim": 64}
        model = hf.Qwen3Model(hf.Qwen3Config(**sizes, **heads, use_cache=False, **eager))
    return Output(model, "last_hidden_state"), torch.randint(0, 30000, (1, TOKENS))


def hub_net(name):
    import transformers as hf

    settings, shape = HUB_NETS[name]
    config = hf.AutoConfig.for_model(name, **settings)
    model = getattr(hf, HEADS.get(name, "AutoModel")).from_config(config, attn_implementation="eager")
    return First(model), torch.randint(3, 4000, (1, shape)) if isinstance(shape, int) else torch.randn(*shape)


def timm_net(name):
    import timm

    model = timm.create_model(name, exportable=True)
    # some begin with a head of zeros, which would leave nothing to compare
    for parameter in model.parameters():
        if parameter.dim() > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return model, torch.randn(1, *model.pretrained_cfg["input_size"])


def whisper_encoder():
    import transformers as hf

    model = hf.WhisperModel(hf.WhisperConfig(attn_implementation="eager")).encoder
    return Output(model, "last_hidden_state"), torch.randn(1, 80, 3000)


TEXT_NETS = ["t5_small_enc", "albert", "modernbert", "qwen3"]
OTHERS = {
    "unet": lambda: (UNet(), torch.randn(1, 3, 256, 256)),
    "darknet": lambda: (Darknet(), torch.randn(1, 3, 256, 256)),
    "lraspp": lraspp,
    "whisper_enc": whisper_encoder,
}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--open", action="store_true")
    arguments = parser.parse_args()
    how = {"opset_version": 17, "dynamo": False} if arguments.legacy else {"opset_version": 18, "dynamo": True}
    if not arguments.legacy:
        how["external_data"] = False
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = arguments.names or [*IMAGE_NETS, *TEXT_NETS, *HUB_NETS, *OTHERS]
    if "timm/" in names:
        families = OPEN_TIMM_NETS if arguments.open else TIMM_NETS
        names = [name for name in names if name != "timm/"] + [f"timm/{name}" for name in families]
    for name in names:
        torch.manual_seed(0)
        if name.startswith("timm/"):
            name = name.removeprefix("timm/")
            model, example = timm_net(name)
        elif name in IMAGE_NETS:
            model, example = image_net(name)
        elif name in HUB_NETS:
            model, example = hub_net(name)
        else:
            model, example = text_net(name) if name in TEXT_NETS else OTHERS[name]()
        path = arguments.out / f"{name}.onnx"
        if arguments.open:
            # an extent of 1 would be taken for a constant
            example = example.repeat(2, *[1] * (example.dim() - 1))
            how |= opened(arguments.legacy, example)
        try:
            with torch.no_grad():
                torch.onnx.export(model.eval(), (example,), str(path), input_names=["x"], output_names=["output"], **how)
        except Exception as error:
            if not arguments.open:
                raise
            reason = (str(error) or type(error).__name__).splitlines()[0]
            print(f"{name} cannot be exported: {reason}", flush=True)
            continue
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB", flush=True)


def opened(is_legacy, example):
    """What has torch.onnx.export leave all extents of a batch of images open but the number of channels."""
    names = {axis: name for axis, name in enumerate(["batch", "channels", "height", "width"][: example.dim()]) if axis != 1}
    if is_legacy:
        return {"dynamic_axes": {"x": names}}
    return {"dynamic_shapes": ({axis: torch.export.Dim.DYNAMIC for axis in names},)}


if __name__ == "__main__":
    main()
