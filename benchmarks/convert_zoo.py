"""Convert untrained torchvision and timm classifiers, and compare probabilities before and after.

    pip install --no-deps torchvision timm     # and huggingface_hub, pyyaml, safetensors
    python benchmarks/convert_zoo.py

A CPU build of torch has no torchvision operators; the two declared below let torchvision import without them.
"""

import argparse

import torch

import bndl
from bndl.convert import find_layer

OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

TORCHVISION = {
    "resnet18": 64, "resnet50": 64, "vgg11": 64, "densenet121": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64,
    "efficientnet_b0": 64, "convnext_tiny": 64, "vit_b_16": 224, "swin_t": 64, "regnet_y_400mf": 64, "squeezenet1_0": 224,
    "shufflenet_v2_x0_5": 64, "alexnet": 224, "mnasnet0_5": 64,
}  # fmt: skip
TIMM = (
    "resnet18", "vit_tiny_patch16_224", "efficientnet_lite0", "mobilenetv3_small_050", "convnext_atto",
    "deit_tiny_distilled_patch16_224", "mixer_s32_224", "regnetx_002", "swin_tiny_patch4_window7_224", "densenet121",
)  # fmt: skip


@torch.no_grad()
def compare(name: str, model: torch.nn.Module, size: int) -> None:
    x = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    before = model.eval()(x).softmax(1)
    try:
        layer = find_layer(bndl.convert(model))
    except bndl.HeadError as error:
        print(f"| {name} | refused | {str(error).split(';')[0]} |")
        return
    gap = float((model(x).softmax(1) - before).abs().max())
    print(f"| {name} | {gap:.0e} | {layer.origin} |", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    import timm
    import torchvision

    print("| model | largest change of a probability | head |\n|---|---|---|")
    torch.manual_seed(0)
    for name, size in TORCHVISION.items():
        compare(f"torchvision {name}", torchvision.models.get_model(name, num_classes=7), size)
    for name in TIMM:
        compare(f"timm {name}", timm.create_model(name, num_classes=7), 224)


if __name__ == "__main__":
    main()
