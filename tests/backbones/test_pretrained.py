"""Checkpoints: names, damaged files, normalisation, and the accuracies on the real test images."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bndl.backbones import CIFAR_CHECKPOINTS, Normalise, cifar_checkpoint, load_cifar_checkpoint, normalise
from bndl.errors import FileError, InputError

NAMES = list(CIFAR_CHECKPOINTS)


def foreign_keys(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename our keys to those of the published files, as saved from a ``DataParallel`` before batch norm counted."""
    return {
        "module."
        + key.replace("stages.0.", "layer1.")
        .replace("stages.1.", "layer2.")
        .replace("stages.2.", "layer3.")
        .replace("fc.", "linear."): value
        for key, value in state.items()
        if not key.endswith("num_batches_tracked")
    }


def one_sentence(error: BaseException) -> bool:
    text = str(error)
    return text.endswith(".") and "\n" not in text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nested", [False, True])
def test_loads_what_was_saved_under_the_files_names(name, nested, tmp_path):
    network = cifar_checkpoint(name).build()
    state = foreign_keys(network.state_dict())
    torch.save({"state_dict": state} if nested else state, tmp_path / "weights.pth")
    loaded = load_cifar_checkpoint(name, tmp_path / "weights.pth")
    assert not loaded.training
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_registry_is_true_of_the_networks(name):
    facts = cifar_checkpoint(name)
    network = facts.build()
    assert (network.fc.in_features, network.fc.out_features) == (facts.num_features, facts.num_classes)


def test_unknown_name_lists_the_known():
    with pytest.raises(InputError, match=r"no checkpoint named 'resnet21': choose one of resnet20_cifar10, .*cifar100"):
        load_cifar_checkpoint("resnet21", "x.pth")


def test_missing_file(tmp_path):
    with pytest.raises(FileError, match=r"no checkpoint file at .*x\.pth: give the path") as caught:
        load_cifar_checkpoint(NAMES[0], tmp_path / "x.pth")
    assert one_sentence(caught.value)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped"])
def test_damaged_file(damage, tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(foreign_keys(cifar_checkpoint(NAMES[0]).build().state_dict()), path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 64]) + whole[middle + 64 :]
    path.write_bytes({"empty": b"", "text": b"not a checkpoint", "cut": whole[:middle], "flipped": flipped}[damage])
    with pytest.raises(FileError, match="is damaged or no PyTorch checkpoint: download") as caught:
        load_cifar_checkpoint(NAMES[0], path)
    assert one_sentence(caught.value)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_code_in_a_file_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": Malicious()}, "weights.pth")
    with pytest.raises(FileError):
        load_cifar_checkpoint(NAMES[0], "weights.pth")
    assert not Path("executed").exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {1: torch.zeros(1)}])
def test_file_without_named_tensors(content, tmp_path):
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(FileError, match="holds no mapping from names to tensors"):
        load_cifar_checkpoint(NAMES[0], tmp_path / "weights.pth")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("module.linear.bias"), r"fc\.bias is missing"),
        (lambda state: state.update({"module.linear.bias": torch.zeros(3)}), r"fc\.bias has dims \(3,\) instead of"),
        (lambda state: state.update({"module.extra": torch.zeros(3)}), "extra is not part of it"),
    ],
)
def test_weights_of_another_network(change, words, tmp_path):
    state = foreign_keys(cifar_checkpoint(NAMES[0]).build().state_dict())
    change(state)
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(FileError, match=f"does not hold the weights of {NAMES[0]}, for {words}") as caught:
        load_cifar_checkpoint(NAMES[0], tmp_path / "weights.pth")
    assert one_sentence(caught.value)


def test_normalise_bytes_and_floats_agree():
    images = torch.randint(0, 256, (4, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    facts = cifar_checkpoint("resnet32_cifar100")
    module = facts.normaliser()
    torch.testing.assert_close(module(images), module(images / 255))
    torch.testing.assert_close(module(images[0]), module(images)[0])
    restored = module(images) * torch.tensor(facts.std)[:, None, None] + torch.tensor(facts.mean)[:, None, None]
    torch.testing.assert_close(restored, images / 255)


def test_normalise_before_a_network_is_traceable_and_adds_no_weights():
    facts = cifar_checkpoint("resnet20_cifar10")
    network = facts.build().eval()
    model = nn.Sequential(facts.normaliser(), network)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(images), model(images))
    assert len(model.state_dict()) == len(network.state_dict())


def test_normalise_refuses_what_it_cannot_read():
    mean, std = torch.zeros(3), torch.ones(3)
    with pytest.raises(InputError, match=r"dims \(\.\.\., 3, H, W\), but \(2, 8, 8, 3\) came"):
        normalise(torch.zeros(2, 8, 8, 3), mean, std)
    with pytest.raises(InputError, match=r"uint8 in 0\.\.255 or floats in \[0, 1\], but torch\.int64 came"):
        normalise(torch.zeros(2, 3, 8, 8, dtype=torch.long), mean, std)
    with pytest.raises(InputError, match="positive std"):
        Normalise((0.5, 0.5), (0.1, 0.0))


def first_test_images(data: Path, dataset: str, num: int) -> tuple[Tensor, Tensor]:
    """Read the first ``num`` test images (num, 3, 32, 32), uint8, and their labels (num,) from a trusted pickle."""
    file, key = {
        "cifar10": ("cifar-10-batches-py/test_batch", b"labels"),
        "cifar100": ("cifar-100-python/test", b"fine_labels"),
    }[dataset]
    with (data / file).open("rb") as stream:
        content = pickle.load(stream, encoding="bytes")
    pixels = np.asarray(content[b"data"])[:num].reshape(-1, 3, 32, 32)
    return torch.from_numpy(pixels), torch.tensor(content[key][:num])


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_accuracy_on_real_test_images(name, reference_data):
    facts = cifar_checkpoint(name)
    network = load_cifar_checkpoint(name, reference_data / "weights" / f"{name}.pth")
    images, labels = first_test_images(reference_data, facts.dataset, 2000)
    with torch.inference_mode():
        features = torch.cat([network.features(facts.normaliser()(batch)) for batch in images.split(250)])
        accuracy = (network.fc(features).argmax(1) == labels).float().mean().item()
    assert features.min() >= 0
    # The figure is of all 10,000 images; of 2,000 drawn from them the standard error is at most 0.9 points.
    assert accuracy == pytest.approx(facts.test_accuracy, abs=0.015)
