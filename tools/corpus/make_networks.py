#!/usr/bin/env python3
"""Exports the training networks to ONNX: architectures of torchvision and transformers, seeded random weights.

usage: make_networks.py OUT_DIR [NAME ...]      (no name: all)

Needs torch, torchvision, transformers and onnxscript. The evaluation networks (resnet50, resnext50,
mobilenet_v2, bert_base, vit_b_16, gpt2) are not among them; their tasks are excluded by canonical hash
besides. Only the shapes matter for the corpus, so weights are whatever the constructor makes of seed 0.
"""
import pathlib
import sys

import torch

# name: (torchvision constructor, batch, side)
IMAGE = {
    "resnet18": ("resnet18", 1, 224), "resnet18_160": ("resnet18", 1, 160), "resnet34_b2": ("resnet34", 2, 192),
    "densenet121": ("densenet121", 1, 224), "efficientnet_b0": ("efficientnet_b0", 1, 224),
    "efficientnet_b0_176": ("efficientnet_b0", 1, 176), "squeezenet": ("squeezenet1_1", 1, 224),
    "squeezenet_b3": ("squeezenet1_0", 3, 160), "mnasnet": ("mnasnet0_5", 1, 192), "mobilenet_v3": ("mobilenet_v3_small", 1, 224),
    "shufflenet": ("shufflenet_v2_x0_5", 1, 208), "regnet": ("regnet_y_400mf", 1, 192), "googlenet": ("googlenet", 1, 160),
    "vgg11": ("vgg11_bn", 1, 128), "alexnet": ("alexnet", 2, 224), "convnext": ("convnext_tiny", 1, 160),
    "r3d": ("r3d_18", 1, 56),
}
# name: (layers, width, heads, batch, sequence)
BERT = {
    "bert_tiny": (2, 128, 2, 1, 128), "bert_mini": (1, 256, 4, 1, 64), "bert_small": (1, 512, 8, 2, 96),
    "bert_medium": (1, 640, 10, 1, 77), "minilm_like": (1, 384, 12, 1, 160), "bert_odd": (1, 320, 5, 3, 50),
}
# name: (width, heads, intermediate, batch, sequence)
LLAMA = {"llama_small": (512, 8, 1376, 1, 64), "llama_wide": (1024, 16, 2816, 1, 33), "llama_one": (640, 10, 1728, 1, 1)}


class LastHidden(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids).last_hidden_state


def build(name):
    if name in IMAGE:
        import torchvision

        constructor, batch, side = IMAGE[name]
        if constructor == "r3d_18":
            return torchvision.models.video.r3d_18(weights=None).eval(), torch.randn(batch, 3, 8, side, side), "image"
        extra = {"aux_logits": False, "init_weights": False} if constructor == "googlenet" else {}
        return getattr(torchvision.models, constructor)(weights=None, **extra).eval(), torch.randn(batch, 3, side, side), "image"
    if name in BERT:
        from transformers import BertConfig, BertModel

        layers, width, heads, batch, sequence = BERT[name]
        config = BertConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, vocab_size=2000,
                            intermediate_size=4 * width, attn_implementation="eager")
        model = BertModel(config, add_pooling_layer=False).eval()
        return LastHidden(model), torch.randint(0, 2000, (batch, sequence)), "input_ids"
    from transformers import LlamaConfig, LlamaModel

    width, heads, intermediate, batch, sequence = LLAMA[name]
    config = LlamaConfig(num_hidden_layers=1, hidden_size=width, num_attention_heads=heads, num_key_value_heads=heads, vocab_size=2000,
                         intermediate_size=intermediate, attn_implementation="eager", use_cache=False)
    return LastHidden(LlamaModel(config).eval()), torch.randint(0, 2000, (batch, sequence)), "input_ids"


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or [*IMAGE, *BERT, *LLAMA]:
        torch.manual_seed(0)
        model, example, input_name = build(name)
        path = out / f"{name}.onnx"
        with torch.no_grad():
            torch.onnx.export(model, (example,), str(path), input_names=[input_name], output_names=["output"],
                              opset_version=18, dynamo=True, external_data=False)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
