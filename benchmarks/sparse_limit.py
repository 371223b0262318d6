"""Is a sparse head short of examples, of steps, or of weights? Its accuracy on what it learnt from and on what it did not.

    python benchmarks/sparse_limit.py [resnet32_cifar100] [--nnz 0.1] [--cache runs/features]

If a head with a tenth of the weights lacked examples, it would fit those that it learnt from as well as the dense head
does; if it lacked steps, more would help. Weights learn from the training features and a quarter of the validation part,
another quarter judges, and one half is kept to measure on: the test part is not looked at. Prints Markdown.
"""

import argparse
import copy
from pathlib import Path

import torch

from bndl.baselines.bndl import takes_nonnegative
from bndl.baselines.method import fresh
from bndl.compare.subjects import find_source
from bndl.convert import convert, find_layer
from bndl.data import stratified_split
from bndl.features import FeatureSet
from bndl.layer import DecisionLayer
from bndl.sparsify import walk
from bndl.sparsify.run import Target, follow


@torch.no_grad()
def accuracy(layer: DecisionLayer, data: FeatureSet) -> float:
    found = torch.cat([layer(rows.float()).argmax(dim=1) for rows in data.features.split(4096)])
    return float((found == data.labels).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", nargs="?", default="resnet32_cifar100")
    parser.add_argument("--nnz", type=float, default=0.1)
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    args = parser.parse_args()
    subject = find_source(args.subject, cache=args.cache, ood={}).subject
    kind = "nonnegative" if takes_nonnegative(subject.val) else "signed"
    dense = find_layer(convert(fresh(subject.head), features=kind)).eval()
    halves = stratified_split(subject.val.labels.numpy(), {"test": 0.5}, seed=0).indices
    val, kept = (subject.val.take(torch.as_tensor(halves[part])) for part in ("train", "test"))
    print("| steps | nnz | accuracy on the training part | on the kept half |\n|---|---|---|---|")
    shown = f"{accuracy(dense, subject.train):.2%} | {accuracy(dense, kept):.2%}"
    print(f"| | {dense.num_weights() / dense.weight.numel():.3f} | {shown} |")
    passes = walk._SHORT, walk._LONG
    for times in (1, 4):
        walk._SHORT, walk._LONG = (times * number for number in passes)
        *_, point = follow(dense, subject.train, val, Target(nnz=args.nnz).goals(dense, 6), mode="prune")
        sparse = copy.deepcopy(dense)
        sparse.load_state_dict(point.state)
        shown = f"{accuracy(sparse, subject.train):.2%} | {accuracy(sparse, kept):.2%}"
        print(f"| x {times} | {point.nnz:.3f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
