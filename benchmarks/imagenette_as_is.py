"""Accuracy of EfficientNet-Lite0 on Imagenette with nothing trained but its ImageNet head, before and after `convert`.

    python benchmarks/imagenette_as_is.py [--data DIR]

DIR is a folder with Imagenette in it; left out, the one that BNDL_DATA names.
"""

import argparse

import torch

import bndl
from bndl.backbones import build
from bndl.data import Reading, load
from bndl.train import loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder that holds Imagenette")
    parser.add_argument("--resize", type=int, default=256, help="length of the shorter side before the crop to 224")
    args = parser.parse_args()
    images = load("imagenette", split="val", root=args.data, reading=Reading(size=224, resize=args.resize))
    model = build("efficientnet-lite0", pretrained=True, classes=images.classes).model
    with torch.no_grad():
        dense = torch.cat([model(inputs) for inputs, _ in loader(images, batch_size=50, workers=0)])
    converted = bndl.predict(bndl.convert(model), loader(images, batch_size=50, workers=0))
    print(f"{len(images)} images of {len(images.classes)} classes")
    print(f"dense      {(dense.argmax(dim=1) == images.labels).double().mean():.2%}")
    print(f"converted  {(converted.labels == images.labels).double().mean():.2%}")
    print(f"decisions that differ: {int((dense.argmax(dim=1) != converted.labels).sum())}")


if __name__ == "__main__":
    main()
