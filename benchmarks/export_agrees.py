"""What an exported file says in ONNX Runtime, against predict, on the 5,000 test images that the head was not fitted to.

    python benchmarks/export_agrees.py --data DIR [--checkpoints resnet56_cifar10 resnet32_cifar100] [--seed 0]

DIR holds cifar-10-batches-py, cifar-100-python and weights/. Fits the head of each pretrained network to half of the test
set, exports the whole network as it takes uint8 images, and compares every field on the other half. Prints Markdown: the
largest difference of each field, and how many decisions, second classes and "certain" differ.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import bndl
from bndl.backbones import cifar_checkpoint, load_cifar_checkpoint
from bndl.data import as_float, load, stratified_split
from bndl.errors import MissingExtraError
from bndl.export import FromPixels
from bndl.features import extract
from bndl.metrics import expected_calibration_error, negative_log_likelihood

WAYS = {
    "64 draws, three reasons": {"reasons": 3},
    "no draws": {"method": "closed"},
}
FLOATS = ("probs", "logits", "p_value", "flip_probability", "entropy", "aleatoric", "epistemic")
WHOLE = ("labels", "runner_up", "certain")


def run(path: Path, images: Tensor, batch: int) -> dict[str, Tensor]:
    """All that the file says of the images."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("ONNX Runtime", extra="export") from error
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    parts = [session.run(None, {"images": rows.numpy()}) for rows in images.split(batch)]
    names = [port.name for port in session.get_outputs()]
    return {name: torch.cat([torch.from_numpy(part[i]) for part in parts]) for i, name in enumerate(names)}


def quality(found: dict[str, Tensor], truth: Tensor) -> list[str]:
    """Accuracy, NLL, ECE of what the file says."""
    nll, ece = negative_log_likelihood(found["probs"], truth), expected_calibration_error(found["probs"], truth)
    return [f"{float((found['labels'] == truth).double().mean()):.2%}", f"{float(nll):.4f}", f"{float(ece):.2%}"]


def figures(found: dict[str, Tensor], wanted: bndl.Prediction) -> list[str]:
    """The largest differences, then how many differ."""
    apart = [(found[name].double() - getattr(wanted, name).double()).abs().max() for name in FLOATS]
    return [f"{float(x):.1e}" for x in apart] + [str(int((found[x] != getattr(wanted, x)).sum())) for x in WHOLE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoints", nargs="+", default=["resnet56_cifar10", "resnet32_cifar100"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=250)
    args = parser.parse_args()
    headings = ["network", "file", "MB", "accuracy", "NLL", "ECE", *FLOATS, *WHOLE]
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
    for name in args.checkpoints:
        facts = cifar_checkpoint(name)
        network = load_cifar_checkpoint(name, args.data / "weights" / f"{name}.pth")
        data = load(facts.dataset, split="test", root=args.data)
        model = bndl.convert(nn.Sequential(facts.normaliser(), network)).eval()
        plan = stratified_split(data.labels.numpy(), {"test": 0.5}, seed=args.seed)
        bndl.fit(
            model, extract(model, data).take(torch.as_tensor(plan.indices["train"])), seed=args.seed, progress=False
        )
        images = torch.stack([data.read(int(index)) for index in plan.indices["test"]])
        truth = data.labels[torch.as_tensor(plan.indices["test"])]
        with tempfile.TemporaryDirectory() as folder:
            for way, settings in WAYS.items():
                written = bndl.export(FromPixels(model), Path(folder, "m.onnx"), images[:16], **settings)
                found = run(written.path, images, args.batch)
                told = {key: value for key, value in settings.items() if key != "reasons"}
                wanted = bndl.predict(model, as_float(images), batch_size=args.batch, **told)
                cells = [name, way, f"{written.size / 1e6:.2f}", *quality(found, truth), *figures(found, wanted)]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
