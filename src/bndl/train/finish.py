"""What follows training: calibrate on the validation part, measure on the test part, save; and load it all again."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bndl.baselines import Fitted, get_method
from bndl.calibrate import best_log_scale, calibrate
from bndl.convert import find_layer, find_linear
from bndl.decide import Decider
from bndl.errors import FileError
from bndl.features import FeatureSet, evaluating, extract
from bndl.files import replacing
from bndl.layer import DecisionLayer
from bndl.metrics import expected_calibration_error, negative_log_likelihood, pavpu, weights_per_class
from bndl.predict import decide_all
from bndl.prediction import Prediction, cat
from bndl.store import load, save, to_bytes

__all__ = ["Row", "is_bayesian", "load_weights", "measure", "save_weights"]

_BATCH = 512


@dataclass(frozen=True)
class Row:
    """Figures of one way to predict, on one part of the data; what a method does not have is None."""

    name: str
    accuracy: float
    nll: float
    ece: float
    pavpu: float | None = None
    pavpu_baseline: float | None = None
    weights_per_class: float | None = None


def is_bayesian(model: nn.Module) -> bool:
    """Whether the model has a decision layer."""
    return any(isinstance(module, DecisionLayer) for module in model.modules())


def measure(model: nn.Module, parts: Mapping[str, Any], *, method: str, seed: int = 0) -> dict[str, list[Row]]:
    """Fit to ``parts["val"]`` what no training should (noise, temperature), and measure every part.

    The decision layer's noise is fitted in place, which changes no decision.

    Args:
        model: on the device where it should run, with a decision layer or a linear head; or that head alone.
        parts: batches (inputs, labels) of each part, ``"val"`` among them; feature sets if the model is a head alone.
        method: what the model was trained by, a name of :data:`bndl.baselines.METHODS`.
        seed: of the noise.
    """
    if method == "dense":
        return _measure_dense(model, parts)
    if method != "bndl":
        fitted = get_method(method).predictor(model, seed=seed)
        return {part: [_row_of_method(method, fitted, data)] for part, data in parts.items()}
    layer = find_layer(model)
    sets = {part: extract(model, data, progress=False) for part, data in parts.items()}
    generator = torch.Generator(layer.weight.device).manual_seed(seed)
    calibrate(layer, sets["val"], generator=generator)
    return {part: [_row_of_layer(layer, data)] for part, data in sets.items()}


def _row_of_layer(layer: DecisionLayer, data: FeatureSet) -> Row:
    prediction = decide_all(layer, data.features, Decider(layer), batch_size=_BATCH, progress=False)
    return _row_of("BNDL", prediction, data.labels.cpu(), weights=weights_per_class(layer))


def _row_of_method(name: str, fitted: Fitted, data: Any) -> Row:
    parts = [(fitted.predict(inputs), truth) for inputs, truth in _pairs(data)]
    labels, num_classes = torch.cat([truth for _, truth in parts]), parts[0][0].probs.size(1)
    return _row_of(name, cat([own for own, _ in parts]), labels, weights=fitted.size.active / num_classes)


def _row_of(name: str, prediction: Prediction, labels: Tensor, *, weights: float) -> Row:
    correct = prediction.labels == labels
    counts = pavpu(correct, prediction.certain)
    return Row(
        name=name,
        accuracy=float(correct.double().mean()),
        nll=float(negative_log_likelihood(prediction.probs, labels)),
        ece=float(expected_calibration_error(prediction.probs, labels)),
        pavpu=counts.value,
        pavpu_baseline=counts.baseline,
        weights_per_class=weights,
    )


def _measure_dense(model: nn.Module, parts: Mapping[str, Any]) -> dict[str, list[Row]]:
    outputs = {part: _logits(model, data) for part, data in parts.items()}
    scale = best_log_scale(*outputs["val"]).exp()
    return {
        part: [
            _row_of_logits("dense", logits, labels),
            _row_of_logits("dense, temperature scaled", logits * scale, labels),
        ]
        for part, (logits, labels) in outputs.items()
    }


def _row_of_logits(name: str, logits: Tensor, labels: Tensor) -> Row:
    probs = logits.double().softmax(dim=1)
    return Row(
        name=name,
        accuracy=float((probs.argmax(dim=1) == labels).double().mean()),
        nll=float(negative_log_likelihood(probs, labels)),
        ece=float(expected_calibration_error(probs, labels)),
    )


def _logits(model: nn.Module, data: Any) -> tuple[Tensor, Tensor]:
    device = next(model.parameters()).device
    logits, labels = [], []
    with evaluating(model):
        for inputs, target in _pairs(data):
            output = model(inputs.to(device) if inputs.dtype == torch.uint8 else inputs.to(device, torch.float32))
            logits.append((output if isinstance(output, Tensor) else output.logits).float().cpu())
            labels.append(target)
    return torch.cat(logits), torch.cat(labels)


def _pairs(data: Any) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches (inputs, labels) of a loader, or of a feature set."""
    if isinstance(data, FeatureSet):
        return zip(data.features.split(_BATCH), data.labels.split(_BATCH), strict=True)
    pairs: Iterable[tuple[Tensor, Tensor]] = data
    return pairs


def save_weights(model: nn.Module, path: Path, *, classes: Sequence[str], head_only: bool) -> None:
    """Write a model with either kind of head as safetensors, atomically."""
    if is_bayesian(model):
        save(model, path, classes=classes, head_only=head_only)
        return
    prefix = f"{find_linear(model)[0]}." if head_only else ""
    state = {key: value for key, value in model.state_dict().items() if key.startswith(prefix)}
    metadata = {"format": "bndl-dense", "header": json.dumps({"classes": list(classes), "head_only": head_only})}
    with replacing(path) as temporary:
        temporary.write_bytes(to_bytes(state, metadata=metadata))


def load_weights(path: Path, model: nn.Module, *, dense: bool) -> nn.Module:
    """Put saved weights into a model with a linear head; the model, in ``eval()``."""
    if not dense:
        return load(path, backbone=model)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileError(f"there is no file {path}: give the folder of a run that has finished.")
    try:
        state = load_file(path)
        if any(key.endswith("phi_raw_shape") for key in state):
            raise FileError(f"{path} has a decision layer: give a run that was trained with model.head=dense.")
        missing, unexpected = model.load_state_dict(state, strict=False)
    except (SafetensorError, RuntimeError) as error:
        raise FileError(f"{path} is damaged or of another network: train again.") from error
    if unexpected or (missing and len(state) > 2):  # two: a head alone
        odd = [*unexpected, *missing][0]
        raise FileError(f"{path} is of another network: {odd} is only in one of the two.")
    return model.eval()
