"""The feature cache: the same bits as without it, one key for one thing, and no kill, race or damage makes it lie."""

import errno
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bndl
from bndl.backbones.pretrained import Normalise
from bndl.data import ArraySet, as_float, mapped
from bndl.data.cache import cached_features
from bndl.data.mapped import MappedRows
from bndl.errors import FileError, HeadError, InputError
from bndl.features import FeatureSet, extract

N, K, C = 41, 8, 3
PROBED = {0, N // 2, N - 1}  # examples that pass the backbone when a cache is opened

BUILD = """
import sys
sys.path.append(sys.argv[2])
from test_cache import cached_features, images, mapped, network
mapped._EVERY = 0
cached_features(network(), images(), folder=sys.argv[1], batch_size=4)
"""


class Logged(ArraySet):
    """Reads slowly, logs what it reads, and dies of an example, if the environment asks for it."""

    def read(self, index: int) -> Tensor:
        time.sleep(float(os.environ.get("PAUSE", 0)))
        if os.environ.get("FATAL") == str(index):
            os.kill(os.getpid(), signal.SIGKILL)
        if "LOG" in os.environ:
            with open(os.environ["LOG"], "a") as log:
                log.write(f"{index}\n")
        return super().read(index)


def images(*, seed: int = 0) -> ArraySet:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 256, (N, 1, 4, 4), generator=generator, dtype=torch.uint8)
    inputs[:, 0, 0, 0] = torch.arange(N)  # an example's first pixel is its number
    return Logged("digits", torch.arange(N) % C, ("a", "b", "c"), inputs)


def network() -> nn.Sequential:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(K)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        layers = [nn.Flatten(), nn.Linear(16, K), norm, nn.Hardtanh(-0.5, 2.0), nn.Dropout()]
        return nn.Sequential(Normalise((0.5,), (0.25,)), *layers, nn.Linear(K, C))


def start(folder: Path, log: Path, **settings: object) -> subprocess.Popen[bytes]:
    """Build the cache in another process, which journals each batch and logs each example that it reads."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LOG": str(log)}
    environment |= {name: str(value) for name, value in settings.items()}
    return subprocess.Popen([sys.executable, "-c", BUILD, folder, Path(__file__).parent], env=environment)


def place(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def header(folder: Path) -> dict:
    return json.loads((place(folder) / "header.json").read_text())


def content(folder: Path) -> bytes:
    return (place(folder) / "features.bin").read_bytes()


def watch(model: nn.Module) -> list[int]:
    """The numbers of the examples that pass the model from now on."""
    seen: list[int] = []

    def note(_: nn.Module, args: tuple[Tensor]) -> None:
        if isinstance(args[0], Tensor):  # not in a symbolic trace
            seen.extend(args[0][:, 0, 0, 0].tolist())

    model[0].register_forward_pre_hook(note)
    return seen


def uncached(model: nn.Module, data: ArraySet, *, batch_size: int = 256) -> FeatureSet:
    return extract(bndl.convert(model), data, batch_size=batch_size)


# ------------------------------------------------------------------------------------------------ the same features


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_float32_is_bit_for_bit_what_the_backbone_gives(tmp_path, converted, workers):
    model = bndl.convert(network()) if converted else network()
    model.train()[2].eval()
    modes, random = [module.training for module in model.modules()], torch.get_rng_state()
    seen = watch(model)
    for _ in range(2):
        found = cached_features(model, images(), folder=tmp_path, batch_size=7, num_workers=workers)
        expected = uncached(network(), images(), batch_size=7)
        assert torch.equal(found.features, expected.features)
        assert torch.equal(found.labels, expected.labels)
    assert [row for row in seen if row not in PROBED] == [row for row in range(N) if row not in PROBED]
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_half_precision_is_that_and_half_the_size(tmp_path, dtype, precision):
    found = cached_features(network(), images(), folder=tmp_path, dtype=dtype)
    assert found.features.dtype == dtype
    assert len(content(tmp_path)) == 2 * N * K
    torch.testing.assert_close(
        found.features.float(), uncached(network(), images()).features, rtol=precision, atol=1e-6
    )


def test_the_disk_is_out_of_reach_of_what_is_done_to_the_features(tmp_path):
    found = cached_features(network(), images(), folder=tmp_path)
    before = content(tmp_path)
    found.features.fill_(7.0)
    assert content(tmp_path) == before
    assert not (cached_features(network(), images(), folder=tmp_path).features == 7).all()


@pytest.mark.skipif(sys.platform != "linux", reason="what Linux allows")
def test_a_cache_may_be_larger_than_memory(tmp_path):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows = MappedRows(tmp_path, (2 * memory // 4096, 1024), torch.float32, "large", {})
    rows._write_header(rows.dims[0])
    with rows.file.open("wb") as file:
        file.truncate(rows.dims[0] * 4096)  # sparse: it takes no room
    assert torch.equal(rows.read()[-1], torch.zeros(1024))


# ------------------------------------------------------------------------------------------------ what the key holds


class Wrapped(nn.Module):
    """The same tensors under the same names, another function."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        for name, child in network.named_children():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


def change(path: str) -> nn.Module:
    """The network with one number changed."""
    model = network()
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        tensors[path].view(-1)[0] += 1
    return model


def with_layer(index: int, layer: nn.Module) -> nn.Module:
    model = network()
    model[index] = layer
    return model


def relabelled() -> ArraySet:
    labels = images().labels.clone()
    labels[0] = 2
    return ArraySet("digits", labels, ("a", "b", "c"), images().inputs)


OTHER = {
    "weight": lambda: (change("2.weight"), images(), {}),
    "bias": lambda: (change("3.bias"), images(), {}),
    "batch norm": lambda: (change("3.running_var"), images(), {}),
    "normalise": lambda: (with_layer(0, Normalise((0.6,), (0.25,))), images(), {}),
    "setting": lambda: (with_layer(4, nn.Hardtanh(-0.5, 3.0)), images(), {}),
    "class": lambda: (with_layer(4, nn.ReLU()), images(), {}),
    "wrapper": lambda: (Wrapped(network()), images(), {"head": "6"}),
    "data": lambda: (network(), images(seed=1), {}),
    "order": lambda: (network(), images().subset(range(N - 1, -1, -1)), {}),
    "labels": lambda: (network(), relabelled(), {}),
    "dtype": lambda: (network(), images(), {"dtype": torch.float16}),
    "transform": lambda: (network(), images().transformed(as_float), {}),
    "key": lambda: (network(), images(), {"key": "crop 3"}),
}


@pytest.mark.parametrize("what", OTHER)
def test_whatever_makes_other_features_has_another_cache(tmp_path, what):
    cached_features(network(), images(), folder=tmp_path)
    model, data, settings = OTHER[what]()
    found = cached_features(model, data, folder=tmp_path, **settings)
    assert len(list(tmp_path.iterdir())) == 2
    settings.pop("key", None)
    fresh = cached_features(model, data, folder=tmp_path / "fresh", key="fresh", **settings)
    assert torch.equal(found.features, fresh.features)


def named_twice(model: nn.Sequential) -> nn.Sequential:
    model.get_submodule("1").head = model[-1]
    return model


SAME = {
    "head weights": lambda: (change("6.weight"), images(), {}),
    "head bias": lambda: (change("6.bias"), images(), {}),
    "other head": lambda: (with_layer(6, nn.Linear(K, 7, bias=False)), images(), {}),
    "conversion": lambda: (bndl.convert(network(), phi_shape="entry"), images(), {}),
    "named head": lambda: (network(), images(), {"head": "6"}),
    "training mode": lambda: (network().eval(), images(), {}),
    "frozen": lambda: (network().requires_grad_(False), images(), {}),
    "batch size": lambda: (network(), images(), {"batch_size": 5}),
    "subset of all": lambda: (network(), images().subset(range(N)), {}),
}


@pytest.mark.parametrize("what", SAME)
def test_whatever_makes_the_same_features_has_the_same_cache(tmp_path, what):
    first = cached_features(network(), images(), folder=tmp_path)
    model, data, settings = SAME[what]()
    seen = watch(model)
    second = cached_features(model, data, folder=tmp_path, **settings)
    assert set(seen) <= PROBED
    assert torch.equal(first.features, second.features)


def test_a_head_of_two_names_is_still_no_part_of_the_key(tmp_path):
    first, second = named_twice(network()), named_twice(network())
    with torch.no_grad():
        second[6].weight += 1
    for model in (first, second):
        cached_features(model, images(), folder=tmp_path, head="1.head")
    assert place(tmp_path)


def test_a_head_that_shares_its_weights_leaves_them_to_the_backbone(tmp_path):
    for shift in (0.0, 1.0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 16))
        nn.init.eye_(model[1].weight)
        model[1].weight.data += shift
        model[2].weight = model[1].weight
        nn.init.zeros_(model[1].bias)
        found = cached_features(model, images().transformed(as_float), folder=tmp_path)
        torch.testing.assert_close(found.features, model[:2](as_float(images().inputs)).detach())
    assert len(list(tmp_path.iterdir())) == 2


def test_addresses_are_no_part_of_the_key(tmp_path):
    class Applies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = lambda x: x

        def extra_repr(self) -> str:
            return repr(self.function)

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x)

    models = [with_layer(5, Applies()) for _ in range(2)]
    assert repr(models[0]) != repr(models[1])
    for model in models:
        cached_features(model, images(), folder=tmp_path)
    assert place(tmp_path)


def test_the_header_says_what_the_key_is_made_of(tmp_path):
    cached_features(network(), images(), folder=tmp_path, key="none")
    assert header(tmp_path)["dims"] == [N, K]
    assert header(tmp_path)["rows"] == N
    assert header(tmp_path)["name"] == "Sequential on digits"
    identity = header(tmp_path)["identity"]
    assert identity["data"] == images().fingerprint
    assert (identity["dtype"], identity["head"]) == ("float32", "6: 8 features")
    assert (identity["transform"], identity["key"]) == ("none", "none")


# ------------------------------------------------------------------------------------------------ what no key can see


class Scale(nn.Module):
    """A setting that neither ``print`` nor the state dict shows."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def test_other_code_is_noticed_and_open_caches_stay_as_they_are(tmp_path, caplog):
    first = cached_features(with_layer(5, Scale(1.0)), images(), folder=tmp_path)
    kept = first.features.clone()
    second = cached_features(with_layer(5, Scale(1.1)), images(), folder=tmp_path)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "again: the backbone's code or the transform is another" in record.message
    assert place(tmp_path)
    torch.testing.assert_close(second.features, 1.1 * kept)
    assert torch.equal(first.features, kept)


def test_a_part_of_other_code_is_not_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "_EVERY", 0.0)
    broken = with_layer(5, Scale(2.0))
    stop_after(broken, 5)
    with pytest.raises(KeyboardInterrupt):
        cached_features(broken, images(), folder=tmp_path, batch_size=4)
    found = cached_features(with_layer(5, Scale(1.0)), images(), folder=tmp_path, batch_size=4)
    assert torch.equal(found.features, uncached(network(), images(), batch_size=4).features)


def test_what_is_random_is_refused(tmp_path):
    noisy = images().transformed(lambda x: torch.randint_like(x, 0, 255))
    with pytest.raises(InputError, match=r"differ from one pass to the next .* take what is random out"):
        cached_features(network(), noisy, folder=tmp_path, key="noise")


# ------------------------------------------------------------------------------------------------ kills and races


def stop_after(model: nn.Module, passes: int) -> None:
    """Let the model be interrupted at a later pass, as by Ctrl-C."""
    left = [passes]

    def count(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    model.register_forward_pre_hook(count)


def test_a_killed_build_goes_on_where_it_was(tmp_path):
    folder, log = tmp_path / "caches", tmp_path / "log"
    assert start(folder, log, FATAL=17).wait(300) == -signal.SIGKILL
    done = header(folder)["rows"]
    assert 12 <= done < N
    with (place(folder) / "features.bin").open("ab") as file:
        file.write(b"torn")  # a write that the journal knows nothing of
    model = network()
    seen = watch(model)
    found = cached_features(model, images(), folder=folder, batch_size=4)
    assert {row for row in seen if row < done} == {0, done // 2, done - 1, N // 2} & set(range(done))
    assert set(range(done, N)) <= set(seen)
    assert torch.equal(found.features, uncached(network(), images(), batch_size=4).features)
    cached_features(network(), images(), folder=tmp_path / "unbroken", batch_size=4)
    assert content(folder) == content(tmp_path / "unbroken")


def test_of_two_processes_one_builds(tmp_path):
    folder, logs = tmp_path / "caches", [tmp_path / "first", tmp_path / "second"]
    processes = [start(folder, log, PAUSE=0.02) for log in logs]
    assert [process.wait(60) for process in processes] == [0, 0]
    read = [int(line) for log in logs for line in log.read_text().split()]
    assert [row for row in sorted(read) if row not in PROBED] == [row for row in range(N) if row not in PROBED]
    found = cached_features(network(), images(), folder=folder)
    assert torch.equal(found.features, uncached(network(), images(), batch_size=4).features)


def test_an_interrupt_keeps_what_was_done(tmp_path):
    model = network()
    stop_after(model, 5)
    with pytest.raises(KeyboardInterrupt):
        cached_features(model, images(), folder=tmp_path, batch_size=4)
    assert header(tmp_path)["rows"] == 20
    assert model.training


def test_a_full_disk_is_told_and_the_build_goes_on_when_there_is_room(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 * K * 4 + 10, hard))
    try:
        with pytest.raises(FileError, match=r"cannot use .*File too large"):
            cached_features(network(), images(), folder=tmp_path, batch_size=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert header(tmp_path)["rows"] == 20
    found = cached_features(network(), images(), folder=tmp_path, batch_size=4)
    assert torch.equal(found.features, uncached(network(), images(), batch_size=4).features)


# ------------------------------------------------------------------------------------------------ damage


def truncate(cache: Path) -> None:
    file = cache / "features.bin"
    file.write_bytes(file.read_bytes()[:-1])


def edit_header(**changes: object):
    def damage(cache: Path) -> None:
        file = cache / "header.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return damage


DAMAGE = {
    "truncated": (truncate, "features.bin has 1311 bytes instead of 1312"),
    "longer": (lambda cache: (cache / "features.bin").open("ab").write(b"x"), "1313 bytes instead of 1312"),
    "no features": (lambda cache: (cache / "features.bin").unlink(), "features.bin cannot be opened"),
    "no header": (lambda cache: (cache / "header.json").unlink(), "header.json is missing"),
    "torn header": (lambda cache: (cache / "header.json").write_text('{"rows": 4'), "header.json is damaged"),
    "binary header": (lambda cache: (cache / "header.json").write_bytes(b"\xff\x00"), "header.json is damaged"),
    "list header": (lambda cache: (cache / "header.json").write_text("[]"), "header.json is damaged"),
    "too many rows": (edit_header(rows=N + 1), "header.json is of other features"),
    "other rows": (edit_header(dims=[N, K - 1]), "header.json is of other features"),
    "other key": (edit_header(identity={}), "header.json is of other features"),
    "zeros": (lambda cache: (cache / "features.bin").write_bytes(bytes(4 * N * K)), "code or the transform is another"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_cache_is_built_again(tmp_path, caplog, what):
    damage, words = DAMAGE[what]
    expected = cached_features(network(), images(), folder=tmp_path).features.clone()
    before = content(tmp_path)
    damage(place(tmp_path))
    assert torch.equal(cached_features(network(), images(), folder=tmp_path).features, expected)
    (record,) = caplog.records
    assert words in record.message
    assert content(tmp_path) == before
    caplog.clear()
    cached_features(network(), images(), folder=tmp_path)
    assert not caplog.records


def test_a_finished_cache_needs_no_lock(tmp_path, monkeypatch):
    cached_features(network(), images(), folder=tmp_path)

    def refuse(self: MappedRows) -> None:
        raise PermissionError

    monkeypatch.setattr(MappedRows, "locked", refuse)
    assert len(cached_features(network(), images(), folder=tmp_path)) == N


# ------------------------------------------------------------------------------------------------ what cannot be


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside", Path("/proc/self/caches")):
        with pytest.raises(FileError, match=f"cannot use {folder}/.*: choose a folder that is yours"):
            cached_features(network(), images(), folder=folder)


def test_a_map_that_the_system_refuses(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    cached_features(network(), images(), folder=tmp_path)
    monkeypatch.setattr(mapped.mmap, "mmap", refuse)
    with pytest.raises(FileError, match=r"cannot use .* \(Cannot allocate memory\)"):
        cached_features(network(), images(), folder=tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_another_user(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FileError, match="Permission denied"):
        cached_features(network(), images(), folder=tmp_path / "caches")


def test_too_little_room_is_said_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 4 * N * K - 1}))
    model = network()
    seen = watch(model)
    with pytest.raises(FileError, match=r"need 0\.00 GB but .* has 0\.00 GB free: make room"):
        cached_features(model, images(), folder=tmp_path)
    assert not seen
    assert len(cached_features(model, images(), folder=tmp_path, dtype=torch.float16)) == N


def test_features_beyond_half_precision(tmp_path):
    model = with_layer(5, Scale(1e5))
    with pytest.raises(
        InputError, match=r"batch of 4 from example 0 on, .* not fit float16 .*=torch\.bfloat16 or float32"
    ):
        cached_features(model, images(), folder=tmp_path, dtype=torch.float16, batch_size=4)
    assert len(cached_features(model, images(), folder=tmp_path, dtype=torch.bfloat16)) == N


def test_features_that_are_not_finite(tmp_path):
    data = images().transformed(lambda x: torch.where(x[0, 0, 0] == 6, torch.nan, as_float(x)))
    words = r"batch of 4 from example 4 on, 1 of 4 examples have NaN .* \(first at index 2\)"
    with pytest.raises(InputError, match=words):
        cached_features(network(), data, folder=tmp_path, key="nan at 6", batch_size=4)


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (lambda: images().transformed(torch.flip), {}, 'has a transform of its own, .* name it with key="'),
        (lambda: torch.zeros(3, 1, 4, 4), {}, "takes a bndl.data.LabelledSet, .* got Tensor"),
        (lambda: images().subset([]), {}, "digits is empty"),
        (images, {"dtype": torch.int8}, "got torch.int8 and 256"),
        (images, {"batch_size": 0}, "batch_size >= 1, got torch.float32 and 0"),
    ],
)
def test_what_cannot_be_cached(tmp_path, data, settings, words):
    with pytest.raises(InputError, match=words):
        cached_features(network(), data(), folder=tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_labels_that_the_head_does_not_know(tmp_path):
    with pytest.raises(InputError, match=r"lie in 0\.\.1 for 2 classes, got 0\.\.2"):
        cached_features(with_layer(6, nn.Linear(K, 2)), images(), folder=tmp_path)


def test_a_model_without_a_head(tmp_path):
    with pytest.raises(HeadError, match=r"no nn\.Linear to convert"):
        cached_features(nn.Flatten(), images(), folder=tmp_path)


# ------------------------------------------------------------------------------------------------ training on it


def clusters(count: int = 1500) -> ArraySet:
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(count) % C
    inputs = torch.randn(count, 6, generator=generator) + 2.0 * nn.functional.one_hot(labels, 6)
    return ArraySet("clusters", labels, ("a", "b", "c"), inputs)


def learner() -> nn.Sequential:
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, C))


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_head_learns_from_half_precision_what_it_learns_from_single(tmp_path, dtype, held_out):
    data, fresh = clusters(), clusters(600).inputs
    probs = []
    for kind in (torch.float32, dtype):
        found = cached_features(learner(), data, folder=tmp_path, dtype=kind)
        val = cached_features(learner(), data.subset(range(300)), folder=tmp_path, dtype=kind) if held_out else None
        model = bndl.convert(learner())
        result = bndl.fit(model, found, val, epochs=5, lr=0.02)
        assert result.best_epoch > 0
        assert result.nll_after < 0.7 * result.nll_before
        probs.append(bndl.predict(model, fresh).probs)
    torch.testing.assert_close(probs[0], probs[1], rtol=0, atol=0.03 if dtype == torch.float16 else 0.1)


def test_fit_on_a_cache_is_fit_on_the_data(tmp_path):
    data, models = clusters(), [bndl.convert(learner()) for _ in range(2)]
    bndl.fit(models[0], data, epochs=2)
    bndl.fit(models[1], cached_features(models[1], data, folder=tmp_path), epochs=2)
    assert all(torch.equal(one, other) for one, other in zip(*(m.parameters() for m in models), strict=True))


def test_fit_copies_what_it_holds_out_once_and_the_rest_by_batches(tmp_path, monkeypatch):
    found, taken = cached_features(learner(), clusters(), folder=tmp_path, dtype=torch.float16), []
    take = FeatureSet.take

    def noting(self: FeatureSet, rows: Tensor) -> FeatureSet:
        if self is found:
            taken.append(rows)
        return take(self, rows)

    monkeypatch.setattr(FeatureSet, "take", noting)
    assert bndl.fit(bndl.convert(learner()), found, epochs=1, lr=0.02).best_epoch == 1
    held_out, *batches = taken
    assert len(held_out) == 300
    assert max(map(len, batches)) == 256
    learnt = torch.cat(batches).unique()
    assert torch.equal(torch.cat([held_out, learnt]).sort().values, torch.arange(1500))  # none is both


def test_calibration_on_all_that_was_given_copies_batches(tmp_path, monkeypatch):
    found, copied = cached_features(learner(), clusters(), folder=tmp_path, dtype=torch.float16), []
    like = FeatureSet.like
    monkeypatch.setattr(FeatureSet, "like", lambda self, tensor: copied.append(len(self)) or like(self, tensor))
    bndl.fit(bndl.convert(learner()), found, epochs=0)
    assert max(copied) == 512
