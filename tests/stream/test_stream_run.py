"""A source into a file: what bndl.predict says, whatever the batches, the format and the interruptions."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamed import FORMATS, C, K, N, rows_of, same

import bndl
from bndl.errors import FileError, InputError
from bndl.reasons import top_reasons
from bndl.stream import Predictor, Settings, open_source, predict_to_file
from bndl.stream.place import Place
from bndl.stream.settings import Sizes


def stream(predictor, path, out, *, resume=False, overwrite=False, **given):
    source = open_source(path, in_features=K)
    return predict_to_file(predictor, source, out, settings=Settings(**given), resume=resume, overwrite=overwrite)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("method", ["sample", "closed", "paper"])
def test_the_rows_are_those_of_predict_to_the_last_bit(tmp_path, predictor, source, features, suffix, method):
    out = tmp_path / f"out.{suffix}"
    summary = stream(predictor, source, out, method=method, seed=5, level=0.2, batch_size=33, shard_rows=100, workers=2)
    wanted = bndl.predict(predictor.model, features, method=method, seed=5, level=0.2)
    found = rows_of(out)
    assert same(found, wanted)
    assert [int(row["source"]) for row in found] == list(range(N))
    assert 0 < int(wanted.certain.sum()) < N
    assert (summary.rows, summary.certain) == (N, int(wanted.certain.sum()))
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", out.name}


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(batch=st.integers(5, 300), shard=st.integers(40, 300), workers=st.integers(1, 3))
def test_batches_and_threads_change_no_byte_and_shards_no_value(tmp_path, predictor, source, batch, shard, workers):
    plain, other, cut = (tmp_path / f"{name}.jsonl" for name in ("plain", "other", "cut"))
    stream(predictor, source, plain, overwrite=True, reasons=2, probs="all")
    stream(predictor, source, cut, overwrite=True, reasons=2, probs="all", shard_rows=shard)
    stream(
        predictor,
        source,
        other,
        overwrite=True,
        reasons=2,
        probs="all",
        batch_size=batch,
        shard_rows=shard,
        workers=workers,
    )
    assert plain.read_bytes() == other.read_bytes() == cut.read_bytes()


def layers():
    yield "signed", {"signed": True}
    yield "dense map", {"dense_map": True}
    yield "sample", {"theta_shape": "sample"}
    yield "entry", {"theta_shape": "entry", "phi_shape": "entry"}


@pytest.mark.parametrize("given", [given for _, given in layers()], ids=[name for name, _ in layers()])
def test_every_kind_of_layer(tmp_path, source, features, given):
    torch.manual_seed(0)
    layer = bndl.DecisionLayer(K, C, **given).eval()
    stream(Predictor(layer, tuple("abcd")), source, tmp_path / "o.parquet", reasons=3, batch_size=17, shard_rows=99)
    found = rows_of(tmp_path / "o.parquet")
    assert same(found, bndl.predict(layer, features))
    from bndl.explain import reasons

    for row, wanted in zip(found, reasons(layer, features, top=3), strict=True):
        assert [term["feature"] for term in row["reasons"]] == [k for k, _ in wanted]
        assert [term["contribution"] for term in row["reasons"]] == pytest.approx([v for _, v in wanted], rel=1e-5)


def test_reasons_do_not_depend_on_the_batch():
    torch.manual_seed(0)
    layer = bndl.DecisionLayer(300, C, dense_map=True).eval()
    torch.nn.init.normal_(layer.dense_map.weight)
    features, labels = torch.rand(70, 300), torch.arange(70) % C
    whole = top_reasons(layer, features, labels, top=5)
    for size in (1, 3, 64):
        parts = [top_reasons(layer, x, y, top=5) for x, y in zip(features.split(size), labels.split(size), strict=True)]
        assert torch.equal(torch.cat([part.values for part in parts]), whole.values)
        assert torch.equal(torch.cat([part.features for part in parts]), whole.features)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_layers_of_other_precision(tmp_path, layer, source, features, dtype):
    layer = layer.to(dtype)
    stream(Predictor(layer, tuple("abcd")), source, tmp_path / "o.parquet", batch_size=64)
    assert same(rows_of(tmp_path / "o.parquet"), bndl.predict(layer, features))


def test_all_sources_of_the_same_features_say_the_same(tmp_path, predictor, source, features):
    np.savez_compressed(tmp_path / "x.npz", features=features.numpy())
    lists = pa.FixedSizeListArray.from_arrays(pa.array(features.numpy().ravel()), K)
    pq.write_table(pa.table({"v": lists}), tmp_path / "x.parquet", row_group_size=37)
    for path in (source, tmp_path / "x.npz", tmp_path / "x.parquet"):
        stream(predictor, path, tmp_path / f"from-{path.suffix[1:]}.csv")
    first, *others = ((tmp_path / f"from-{suffix}.csv").read_bytes() for suffix in ("npy", "npz", "parquet"))
    assert others == [first, first]


# ------------------------------------------------------------------------------------------------- stopped and resumed


class Killed(BaseException):
    pass


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    suffix=st.sampled_from(FORMATS),
    shard=st.sampled_from([25, 64, 230]),
    when=st.integers(0, 9),
    where=st.sampled_from(["before", "data", "after", "join"]),
    batch=st.sampled_from([10, 4096]),
)
def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    tmp_path_factory, predictor, features, suffix, shard, when, where, batch
):
    folder = tmp_path_factory.mktemp("run")
    np.save(folder / "x.npy", features.numpy())
    whole, out = folder / f"whole.{suffix}", folder / f"out.{suffix}"
    given = {"shard_rows": shard, "reasons": 1}
    stream(predictor, folder / "x.npy", whole, **given)
    number = min(when, (N - 1) // shard)
    commit, finish = Place.commit, Place.finish

    def dying(place, at, write, note):
        if where == "join" or at < number:
            return commit(place, at, write, note)
        if where == "data":  # the data are there, the note is not
            write(place.data(at))
        elif where == "after":
            commit(place, at, write, note)
        (place.folder / ".0123abcd.shard").touch()  # what a kill leaves of a file in the making
        raise Killed

    def dying_at_the_end(place, join, notes):
        join([place.data(0)], place.folder / "joined")
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "commit", dying)
        patch.setattr(Place, "finish", dying_at_the_end if where == "join" else finish)
        with pytest.raises(Killed):
            stream(predictor, folder / "x.npy", out, **given)
    assert not out.exists()
    summary = stream(predictor, folder / "x.npy", out, resume=True, batch_size=batch, **given)
    done = {"before": number, "data": number, "after": number + 1, "join": 99}[where] * shard
    assert summary.before == min(N, done)
    assert out.read_bytes() == whole.read_bytes()
    assert summary.rows == N
    assert {path.name for path in folder.iterdir()} == {"x.npy", whole.name, out.name}


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_killed_again_and_again(tmp_path, predictor, source, strike, how):
    bndl.save(predictor.model, tmp_path / "m.safetensors", classes=list(predictor.classes))
    whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    stream(predictor, source, whole, shard_rows=10)
    command = ["predict", str(tmp_path / "m.safetensors"), str(source), "--out", str(out), "--shard-rows", "10"]
    for number, shards in ((4, 3), (6, 8)):  # the commit in which it comes, and what is there by then
        resume = ["--resume"] if out.with_name("out.csv.part").exists() else []
        process = strike(how, "bndl.stream.place:Place.commit", number, *command, *resume)
        assert process.returncode == (130 if how is signal.SIGINT else -how), process.stderr
        assert not out.exists()
        assert len(list(tmp_path.glob("out.csv.part/shard-*.json"))) >= shards
    summary = stream(predictor, source, out, resume=True, shard_rows=10)
    assert summary.before >= 80
    assert out.read_bytes() == whole.read_bytes()


@pytest.fixture
def stopped(tmp_path, predictor, source, monkeypatch):
    """An output of which the first of three shards is there."""
    commit = Place.commit

    def dying(place, at, write, note):
        if at:
            raise Killed
        return commit(place, at, write, note)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "commit", dying)
        with pytest.raises(Killed):
            stream(predictor, source, tmp_path / "out.csv", shard_rows=100)
    return tmp_path / "out.csv"


def test_a_stopped_run_is_neither_lost_nor_gone_on_with_unasked(stopped, predictor, source):
    with pytest.raises(FileError, match="give --resume to go on with it, or --overwrite"):
        stream(predictor, source, stopped, shard_rows=100)
    assert stream(predictor, source, stopped, shard_rows=100, resume=True).before == 100


def test_overwrite_begins_again(stopped, predictor, source):
    assert stream(predictor, source, stopped, shard_rows=100, overwrite=True).before == 0
    with pytest.raises(FileError, match="is there already: give --overwrite"):
        stream(predictor, source, stopped, shard_rows=100)
    with pytest.raises(FileError, match="is there already: give --overwrite"):
        stream(predictor, source, stopped, shard_rows=100, resume=True)


def test_a_changed_model_is_refused(stopped, predictor, source):
    before = Path(f"{stopped}.part/shard-000000.data").read_bytes()
    with torch.no_grad():
        predictor.model.weight[0, 0] += 1e-3
    with pytest.raises(FileError, match="begun with another model: give --overwrite"):
        stream(predictor, source, stopped, shard_rows=100, resume=True)
    with torch.no_grad():
        predictor.model.weight[0, 0] -= 1e-3
    renamed = dataclasses.replace(predictor, classes=("a", *predictor.classes[1:]))
    with pytest.raises(FileError, match="begun with another model: give --overwrite"):
        stream(renamed, source, stopped, shard_rows=100, resume=True)
    assert Path(f"{stopped}.part/shard-000000.data").read_bytes() == before


def test_another_way_to_see_images_is_another_model(predictor):
    assert dataclasses.replace(predictor, view="side 8").fingerprint() != predictor.fingerprint()
    other = dataclasses.replace(predictor, model=torch.nn.Sequential(torch.nn.Dropout(0.1), predictor.model))
    assert other.fingerprint() != predictor.fingerprint()


def test_no_thread_outlives_a_run_that_fails(tmp_path, predictor, source, monkeypatch):
    monkeypatch.setattr(Place, "commit", lambda *args: 1 / 0)
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        stream(predictor, source, tmp_path / "out.csv", batch_size=5, shard_rows=10)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("bndl-")]
    assert torch.get_num_threads() == before


def test_a_changed_source_is_refused(stopped, predictor, source, features):
    np.save(source, features.numpy() + 1)
    with pytest.raises(FileError, match="begun with another source: give --overwrite"):
        stream(predictor, source, stopped, shard_rows=100, resume=True)


@pytest.mark.parametrize(
    "given",
    [{"seed": 1}, {"method": "closed"}, {"level": 0.1}, {"probs": "none"}, {"reasons": 1}, {"shard_rows": 50}],
)
def test_a_changed_setting_is_refused(stopped, predictor, source, given):
    with pytest.raises(FileError, match="begun with another setting: give --overwrite"):
        stream(predictor, source, stopped, resume=True, **{"shard_rows": 100} | given)


def test_a_damaged_shard_is_made_again(stopped, predictor, source):
    data = Path(f"{stopped}.part/shard-000000.data")
    data.write_bytes(data.read_bytes()[:-5])
    assert stream(predictor, source, stopped, shard_rows=100, resume=True).before == 0
    assert len(rows_of(stopped)) == N


def test_a_manifest_that_is_damaged_is_refused(stopped, predictor, source):
    Path(f"{stopped}.part/manifest.json").write_bytes(b"{")
    with pytest.raises(FileError, match=r"is damaged .*--overwrite"):
        stream(predictor, source, stopped, shard_rows=100, resume=True)


def test_two_processes_do_not_share_a_folder(stopped, predictor, source):
    with (
        Place(stopped, identity={}).opened(resume=False, overwrite=True),
        pytest.raises(FileError, match="another process is at work"),
    ):
        stream(predictor, source, stopped, shard_rows=100, overwrite=True)


def test_a_folder_of_someone_else_is_never_emptied(tmp_path, predictor, source):
    part = tmp_path / "out.csv.part"
    part.mkdir()
    (part / "precious.txt").write_text("mine")
    for resume, overwrite in ((False, False), (True, False), (False, True)):
        with pytest.raises(FileError, match="holds other things"):
            stream(predictor, source, tmp_path / "out.csv", resume=resume, overwrite=overwrite)
    assert (part / "precious.txt").read_text() == "mine"


# --------------------------------------------------------------------------------------------------------- what is bad


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e13])
def test_rows_that_are_not_finite_are_named_and_nothing_is_left(tmp_path, predictor, features, value):
    bad = features.clone()
    bad[[7, 41, 42], [7, 3, 5]] = value
    np.save(tmp_path / "x.npy", bad.numpy())
    with pytest.raises(InputError, match=r"row 7 of x.npy, row 41 of x.npy, row 42 of x.npy: NaN or infinite"):
        stream(predictor, tmp_path / "x.npy", tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_what_was_done_before_a_bad_row_is_kept(tmp_path, predictor, features):
    bad = features.clone()
    bad[150, 0] = float("nan")
    np.save(tmp_path / "x.npy", bad.numpy())
    with pytest.raises(InputError, match="row 150"):
        stream(predictor, tmp_path / "x.npy", tmp_path / "out.csv", shard_rows=50)
    assert not (tmp_path / "out.csv").exists()


def test_float64_beyond_float32_is_not_finite(tmp_path, predictor, features):
    np.save(tmp_path / "x.npy", features.double().numpy() * 1e300)
    with pytest.raises(InputError, match=r"row 0 of x.npy.* and 225 more near them"):
        stream(predictor, tmp_path / "x.npy", tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("out.txt", "cannot tell the format of out.txt"),
        ("out", "cannot tell the format of out"),
        ("nowhere/out.csv", "there is no folder .*nowhere; make it first"),
        ("folder.csv", "it is a folder"),
    ],
)
def test_an_output_that_cannot_be_is_refused(tmp_path, predictor, source, name, words):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises((InputError, FileError), match=words):
        stream(predictor, source, tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "folder.csv"}


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path, predictor, source, monkeypatch):
    commit = Place.commit

    def touching(*args):
        os.utime(source, ns=(0, 0))
        return commit(*args)

    monkeypatch.setattr(Place, "commit", touching)
    with pytest.raises(FileError, match="the source changed"):
        stream(predictor, source, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    "given",
    [{"method": "magic"}, {"probs": "some"}, {"level": 0.0}, {"level": 1.0}, {"batch_size": 0}, {"shard_rows": -1}],
)
def test_settings_that_make_no_sense_are_refused(given):
    with pytest.raises(InputError, match=next(iter(given))):
        Settings(**given)


def test_wide_rows_have_smaller_shards(source):
    rows = open_source(source, in_features=K)
    narrow, wide = (Settings(probs="all").sizes(rows, classes) for classes in (10, 1000))
    assert isinstance(narrow, Sizes)
    assert narrow.shard > wide.shard >= 1024


MEMORY = """
import re, sys
from pathlib import Path
import torch
import bndl
from bndl.stream import Predictor, Settings, open_source, predict_to_file
torch.set_num_threads(1)
torch.manual_seed(0)
predictor = Predictor(bndl.DecisionLayer(64, 10).eval(), tuple("abcdefghij"))
source = open_source(Path(sys.argv[1]), in_features=64)
predict_to_file(predictor, source, Path(sys.argv[2]), settings=Settings(shard_rows=8192, probs="all"))
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def peak(source, out) -> int:
    """Kilobytes that a process of its own has used at most."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(source), str(out)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("kind", "suffix"), [("npy", "parquet"), ("parquet", "jsonl"), ("npz", "csv")])
def test_four_times_the_rows_need_no_more_memory(tmp_path, kind, suffix):
    peaks = []
    for rows in (50_000, 200_000):
        values = np.random.default_rng(0).random((rows, 64), np.float32)
        path = tmp_path / f"{rows}.{kind}"
        if kind == "npy":
            np.save(path, values)
        elif kind == "npz":
            np.savez(path, values)
        else:
            lists = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 64)
            pq.write_table(pa.table({"v": lists}), path)  # one row group of 51 MB
        peaks.append(peak(path, tmp_path / f"{rows}.{suffix}"))
    assert peaks[1] - peaks[0] < 15_000  # of the 38 MB that the features are larger
