"""A sparse head on features as they are, and after its backbone has learnt to make do with it.

    python benchmarks/finetune_sparse.py resnet32_cifar100 [--nnz 0.1 ...] [--epochs 3] [--seed 0] [--threads 2]

A subject is a pretrained CIFAR checkpoint. The path is walked on the features of its training images and of one half of its
test images; the backbone then learns from the training images, cropped and flipped, what the dense head said of them; the
same half chooses the epoch and fits the noise. Everything is measured on the other half. Prints Markdown, a row as it comes.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

import bndl
from bndl.baselines.bndl import BNDL
from bndl.compare.sparsity import Point, dense_point, point_of
from bndl.compare.subjects import Images, Subject, find_source
from bndl.convert import find_layer
from bndl.features import extract
from bndl.train import Augment, Augmented, loader


def figures(model: torch.nn.Module, images: Images, subject: Subject) -> Point:
    """On the test half; features made anew, as the backbone may have changed."""
    test = extract(model, loader(images.test, batch_size=256), progress=False)
    return point_of("bndl", BNDL().predictor(find_layer(model)), replace(subject, test=test))


def row(name: str, point: Point, minutes: float | None = None) -> str:
    cells = [name, f"{point.nnz:.3f}", f"{point.accuracy:.2%}", f"{point.nll:.3f}", f"{point.ece:.2%}"]
    return f"| {' | '.join(cells)} | {'' if minutes is None else f'{minutes:.0f}'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", nargs="?", default="resnet32_cifar100")
    parser.add_argument("--nnz", type=float, nargs="+", default=[0.1])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    source = find_source(args.subject, cache=args.cache, ood={})
    subject, images = source.subject, source.images()
    print("| | nnz | accuracy | NLL | ECE | minutes |\n|---|---|---|---|---|---|")
    print(row("dense", dense_point(subject)), flush=True)
    model = bndl.convert(images.model)
    for share in args.nnz:
        path = bndl.sparsify(model, subject.train, subject.val, nnz=share, num_points=8, seed=args.seed, progress=False)
        print(row("sparse, features as they are", figures(path.best, images, subject)), flush=True)
        started = time.monotonic()
        train = Augmented(images.train, Augment("cifar", 32), batch_size=128, seed=args.seed)
        val = loader(images.val, batch_size=256)
        tuned = bndl.finetune(path, train, val, epochs=args.epochs, lr=args.lr)
        minutes = (time.monotonic() - started) / 60
        history = ", ".join(f"{epoch.val_nll:.4f}" for epoch in tuned.epochs)
        name = f"sparse, backbone trained {args.epochs} epochs (validation NLL {history})"
        print(row(name, figures(tuned.model, images, subject), minutes), flush=True)


if __name__ == "__main__":
    main()
