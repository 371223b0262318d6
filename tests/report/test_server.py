"""The explorer's server: what it answers is what the library says, to many at once, and to nobody who should not ask."""

import asyncio
import base64
import io
import json
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from explored import HEADERS, image_file, tiny_run, tiny_session

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
PIL = pytest.importorskip("PIL.Image")

from fastapi.testclient import TestClient  # noqa: E402

import bndl  # noqa: E402
from bndl.edit import Edit, Editor, effect  # noqa: E402
from bndl.explain.subject import load_subject  # noqa: E402
from bndl.report import uploads  # noqa: E402
from bndl.report.jobs import Jobs  # noqa: E402
from bndl.report.refused import RefusedError  # noqa: E402
from bndl.report.saving import save_edited  # noqa: E402
from bndl.report.security import Rules  # noqa: E402
from bndl.report.server import bind, create_app  # noqa: E402
from bndl.report.session import Session  # noqa: E402
from bndl.store import read_header  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
LOCAL = "http://127.0.0.1:8765"
TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def session(folder):
    return tiny_session(folder)


@pytest.fixture(scope="module")
def app(session):
    return create_app(session, rules=Rules.of("127.0.0.1", port=8765, token=None))


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app, base_url=LOCAL, headers=HEADERS) as opened:
        yield opened


def strongest(session) -> tuple[int, int]:
    """The feature and class of the largest weight."""
    weight = session.head().weight
    place = int(weight.argmax())
    return place % weight.size(1), place // weight.size(1)


def finished(client, job: str, *, seconds: float = 300.0) -> dict:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = client.get(f"/api/jobs/{job}").json()
        if found["state"] not in ("waiting", "running"):
            return found
        time.sleep(0.02)
    raise AssertionError(f"job {job} did not end")


def refused(response, status: int, words: str = "") -> None:
    assert response.status_code == status, response.text
    record = response.json()
    assert list(record) == ["error"]
    assert words in record["error"]
    assert len(record["error"]) < 250


# ----------------------------------------------------------------------------------------------------------- the page


def test_the_page_is_the_report_alive_and_locked_up(client, session):
    response = client.get("/")
    assert response.status_code == 200
    assert '"live":true' in response.text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in response.headers
    assert session.report["meta"]["live"] is False  # what others see of the data stays as it was


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/redoc", "/api/nothing", "/assets/live.js", "/model"])
def test_nothing_else_is_served(client, path):
    refused(client.get(path), 404, "nothing at this address")


# ------------------------------------------------------------------------------------------------------------ answers


def test_a_prediction_is_what_the_library_says(client, session):
    found = client.post("/api/predict", json={"image": {"example": 7}}).json()
    data, subject = session.opened.data, load_subject(session.folder)
    told = bndl.predict(subject.model, subject.inputs(data[7][0][None]))
    assert found["label"] == int(told.labels[0])
    assert found["truth"] == data[7][1]
    assert found["probability"] == pytest.approx(float(told.confidence[0]), abs=1e-6)
    assert found["p_value"] == pytest.approx(float(told.p_value[0]), rel=1e-4, abs=1e-9)
    assert found["flip"] == pytest.approx(float(told.flip_probability[0]), rel=1e-4, abs=1e-9)
    assert sum(one["probability"] for one in found["probabilities"]) + found["rest"] == pytest.approx(1, abs=1e-5)
    for key, target in (("predicted", found["label"]), ("against", found["other"])):
        side = found[key]
        total = side["bias"] + sum(term["value"] for term in side["terms"]) + side["rest"]
        assert side["class"] == target
        assert total == pytest.approx(float(told.logits[0, target]), abs=1e-4)
    assert found["pictures"]["map"].startswith("data:image/jpeg;base64,")
    assert found["before"]["label"] == found["label"]
    assert found["edited"] is False


def test_the_draws_agree_with_the_closed_form(client, session):
    unsure = int(session.prediction.flip_probability.argmax())
    found = client.post("/api/predict", json={"image": {"example": unsure}}).json()
    runner = client.post("/api/predict", json={"image": {"example": unsure}, "against": found["runner_up"]}).json()
    differences = np.array(runner["draws"]["differences"])
    told = session.prediction[unsure]
    gap = float(told.logits[0, found["label"]] - told.logits[0, found["runner_up"]])
    deviation = float(told.aleatoric[0] + told.epistemic[0]) ** 0.5
    assert len(differences) == 500
    assert differences.mean() == pytest.approx(gap, abs=5 * deviation / 500**0.5)
    assert differences.std() == pytest.approx(deviation, rel=0.25)
    again = client.post("/api/predict", json={"image": {"example": unsure}, "against": found["runner_up"]}).json()
    assert again == runner  # the same question, the same answer


def test_an_edit_changes_the_answer_as_an_editor_does(client, session):
    feature, target = strongest(session)
    edits = [{"feature": feature, "target": target, "factor": 0.0, "note": ""}]
    example = int((session.prediction.labels == target).nonzero()[0])
    plain = client.post("/api/predict", json={"image": {"example": example}}).json()
    found = client.post("/api/predict", json={"image": {"example": example}, "edits": edits}).json()
    subject = load_subject(session.folder)
    Editor(subject.model).drop(feature, target)
    told = bndl.predict(subject.model, subject.inputs(session.opened.data[example][0][None]))
    assert found["label"] == int(told.labels[0])
    assert found["probability"] == pytest.approx(float(told.confidence[0]), abs=1e-6)
    assert found["before"] == {"label": plain["label"], "probability": plain["probability"]}
    assert client.post("/api/predict", json={"image": {"example": example}}).json() == plain  # nothing stayed behind


def test_effects_are_those_of_the_library_on_all_data(client, session):
    feature = strongest(session)[0]
    asked = {"edits": [{"feature": feature, "target": None, "factor": 0.0}]}
    found = client.post("/api/effect", json=asked).json()
    expected = effect(load_subject(session.folder).model, [Edit(feature)], session.opened.features)
    assert found["count"] == len(session.opened.data) == expected.num_examples
    assert found["right_after"] == pytest.approx(expected.accuracy_after)
    assert [row["example"] for row in found["broken"]] == expected.broken.tolist()
    assert [row["example"] for row in found["fixed"]] == expected.fixed.tolist()
    assert found["num_changed"] == len(expected.changed) > 0
    for row in found["broken"]:
        assert row["label"] == int(expected.after[row["example"]]) != row["truth"] == row["before"]


def test_examples_are_found_by_class_decile_and_outcome(client, session):
    told, truth = session.prediction, session.opened.features.labels
    everything = client.get("/api/examples", params={"count": 96}).json()
    assert everything["total"] == len(truth)
    flips = [float(told.flip_probability[row["example"]]) for row in everything["examples"]]
    assert flips == sorted(flips)
    wrong = client.get("/api/examples", params={"outcome": "wrong", "count": 96}).json()
    assert wrong["total"] == int((told.labels != truth).sum())
    assert all(row["label"] != row["truth"] for row in wrong["examples"])
    last = len(session.report["trust"]["deciles"]) - 1
    tenth = client.get("/api/examples", params={"decile": last, "order": "number", "count": 96}).json()
    assert tenth["total"] == session.report["trust"]["deciles"][last]["count"]
    ids = np.frombuffer(base64.b64decode(session.report["examples"]["id_b64"]), "<u4")
    deciles = np.frombuffer(base64.b64decode(session.report["examples"]["decile_b64"]), "u1")
    assert [row["example"] for row in tenth["examples"]] == ids[deciles == last][:96].tolist()
    of_class = client.get("/api/examples", params={"target": 3, "start": 2, "count": 5}).json()
    assert len(of_class["examples"]) == 5
    assert all(3 in (row["label"], row["truth"]) for row in of_class["examples"])


def test_thumbs_are_pictures(client, session):
    found = client.get("/api/thumbs", params={"examples": [0, 5]}).json()
    assert sorted(found) == ["0", "5"]
    image = PIL.open(io.BytesIO(base64.b64decode(found["5"].partition(",")[2])))
    assert image.format == "JPEG"
    assert image.size[0] == image.size[1]
    refused(client.get("/api/thumbs", params={"examples": [len(session.opened.data)]}), 404, "there is no")
    refused(client.get("/api/thumbs", params={"examples": [-1]}), 422)
    refused(client.get("/api/thumbs", params={"examples": list(range(60))}), 422)


# ------------------------------------------------------------------------------------------------------------ uploads


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_an_uploaded_image_is_answered(kind, client, session, tmp_path):
    raw = image_file(kind=kind)
    key = client.post("/api/upload", content=raw).json()["upload"]
    found = client.post("/api/predict", json={"image": {"upload": key}}).json()
    (tmp_path / "image").write_bytes(raw)
    subject = session.opened.subject
    told = bndl.predict(load_subject(session.folder).model, subject.inputs(subject.run.read(tmp_path / "image")))
    assert found["label"] == int(told.labels[0])
    assert found["probability"] == pytest.approx(float(told.confidence[0]), abs=1e-6)
    assert found["truth"] is None
    assert found["decile"] is None


def huge_png(width: int, height: int) -> bytes:
    """A few bytes that claim to be a huge image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("dims", [(5001, 5000), (10_000, 10_000), (60_000, 60_000)])
def test_too_many_pixels_are_never_decoded(dims, client):
    refused(client.post("/api/upload", content=huge_png(*dims)), 413, "million pixels")


def test_too_many_bytes_are_refused(client, session):
    before = len(session.uploads)
    refused(client.post("/api/upload", content=b"\xff\xd8\xff" + bytes(uploads.MAX_BYTES)), 413, "larger than 10 MB")
    asked = {"edits": [{"feature": 0, "factor": 1.0, "note": "x" * 400}] * 1000}
    refused(client.post("/api/effect", json=asked), 413, "too long")
    assert len(session.uploads) == before


@pytest.mark.parametrize(("path", "most"), [("/api/upload", 12), ("/api/effect", 2)])
def test_a_body_without_an_end_is_not_read_to_its_end(path, most, app):
    read, sent = [], []

    async def receive():
        read.append(1)
        assert len(read) < 50, "it goes on reading"
        return {"type": "http.request", "body": bytes(2**20), "more_body": True}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"x-bndl", b"1"), (b"content-length", b"5")]  # which is not true
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    asyncio.run(app({**scope, "headers": headers, "http_version": "1.1", "scheme": "http"}, receive, send))
    assert sent[0]["status"] == 413
    assert len(read) <= most


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"II*\x00" + bytes(50),  # TIFF
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"\x89PNG\r\n\x1a\n" + bytes(30),
        b"\xff\xd8\xff" + b"junk" * 20,
        b"RIFF\x00\x00\x00\x00WEBPVP8 ",
        image_file(kind="TIFF"),
        image_file(side=64)[:-900],
    ],
)
def test_what_is_no_image_is_refused(raw, client, session):
    before = len(session.uploads)
    refused(client.post("/api/upload", content=raw), 415, "no image that can be read")
    assert len(session.uploads) == before


def test_only_the_last_uploads_are_kept(client, session):
    first = client.post("/api/upload", content=image_file()).json()["upload"]
    for _ in range(40):
        client.post("/api/upload", content=image_file(side=9))
    assert len(session.uploads) <= 32
    refused(client.post("/api/predict", json={"image": {"upload": first}}), 404, "send it again")


# --------------------------------------------------------------------------------------------------------------- LIME


def test_lime_runs_shows_progress_and_answers_for_everything(client, session):
    started = client.post("/api/lime", json={"image": {"example": 3}, "perturbations": 60})
    assert started.status_code == 202
    job = started.json()["job"]
    assert finished(client, job) == {"job": job, "state": "done", "done": 60, "total": 60, "error": ""}
    from bndl.explain.lime import lime

    subject = load_subject(session.folder)
    expected = lime(
        subject.model,
        subject.inputs(session.opened.data[3][0]),
        segments="grid",
        count=16,
        num_perturbations=60,
        batch_size=16,
    )
    feature = strongest(session)[0]
    heat = client.get(f"/api/jobs/{job}/heat", params={"feature": feature}).json()
    assert heat["r2"] == pytest.approx(float(expected.r2[expected.row(feature)]), abs=1e-6)
    assert heat["parts"] == 16
    of_class = client.get(f"/api/jobs/{job}/heat", params={"target": 2}).json()
    assert of_class["r2"] == pytest.approx(float(expected.classes.r2[2]), abs=1e-6)
    assert of_class["picture"].startswith("data:image/jpeg")
    refused(client.get(f"/api/jobs/{job}/heat"), 422, "one feature or one class")
    refused(client.get(f"/api/jobs/{job}/heat", params={"feature": 10**6}), 422, "was not explained")
    refused(client.get(f"/api/jobs/{job}/heat", params={"target": -1}), 422)


def test_lime_of_an_edited_class_and_its_model_is_left_as_it_was(client, session):
    feature, target = strongest(session)
    edits = [{"feature": feature, "target": target, "factor": 0.0}]

    def r2(edits: list) -> float:
        asked = {"image": {"example": 3}, "perturbations": 60, "edits": edits}
        job = client.post("/api/lime", json=asked).json()["job"]
        assert finished(client, job)["state"] == "done"
        return client.get(f"/api/jobs/{job}/heat", params={"target": target}).json()["picture"]

    plain = r2([])
    assert r2(edits) != plain
    assert r2([]) == plain


def test_lime_is_stopped_and_its_queue_is_short(client):
    asked = {"image": {"example": 0}, "perturbations": 2000}
    answers = [client.post("/api/lime", json=asked) for _ in range(8)]
    jobs = [found.json()["job"] for found in answers if found.status_code == 202]
    assert 4 <= len(jobs) <= 6
    refused(answers[-1], 429, "waiting")
    refused(client.get(f"/api/jobs/{jobs[-1]}/heat", params={"target": 0}), 409, "not finished")
    for job in reversed(jobs):
        assert client.delete(f"/api/jobs/{job}").status_code == 200
    assert {finished(client, job)["state"] for job in jobs} <= {"stopped", "done"}
    assert finished(client, jobs[-1])["state"] == "stopped"
    refused(client.get("/api/jobs/nothing"), 404, "no such job")
    refused(client.delete("/api/jobs/nothing"), 404, "no such job")


def test_a_job_that_breaks_says_so_and_the_next_one_runs(caplog):
    jobs = Jobs()

    def bad(job):
        raise bndl.InputError("the image is one colour: take another.")

    def worse(job):
        raise ZeroDivisionError

    first, second, third = jobs.submit(bad), jobs.submit(worse), jobs.submit(lambda job: 7)
    end = time.monotonic() + 300
    while third.state != "done" and time.monotonic() < end:
        time.sleep(0.01)
    assert (first.state, first.error) == ("failed", "the image is one colour: take another.")
    assert second.state == "failed"
    assert "terminal" in second.error
    assert (third.state, third.result) == ("done", 7)
    jobs.close()
    with pytest.raises(RefusedError, match="waiting"):
        jobs.submit(lambda job: None)


def test_closing_stops_what_runs():
    jobs, running = Jobs(), threading.Event()

    def forever(job):
        for step in range(10_000):
            running.set()
            job.progress(step, 10_000)
            time.sleep(0.005)

    job = jobs.submit(forever)
    assert running.wait(60)
    jobs.close()
    assert job.state == "stopped"
    assert job.done < 9_000


# ------------------------------------------------------------------------------------------------------------- saving


def test_edited_models_are_numbered_and_come_back(client, session, folder):
    feature, target = strongest(session)
    edits = [{"feature": feature, "target": target, "factor": 0.5, "note": "../../x"}]
    before = (folder / "model.safetensors").read_bytes()
    first, second = (client.post("/api/save", json={"edits": edits}).json() for _ in range(2))
    assert first["folder"] == str(folder / "edited" / "001")
    assert second["folder"] == str(folder / "edited" / "002")
    assert first["files"] == ["edits.json", "model.safetensors"]
    assert sorted(path.name for path in (folder / "edited").iterdir()) == ["001", "002"]
    assert (folder / "model.safetensors").read_bytes() == before
    subject = load_subject(folder, head=folder / "edited" / "001" / "model.safetensors")
    assert torch.equal(subject.layer.weight, session.head([Edit(feature, target, 0.5)]).weight)
    editor = Editor.load(folder / "edited" / "001" / "edits.json", load_subject(folder).model)
    assert editor.edits == (Edit(feature, target, 0.5, "../../x"),)
    editor.undo()
    assert torch.equal(editor.layer.weight, session.head().weight)


def test_a_saved_model_keeps_the_names_that_the_data_have(session):
    called = replace(session.opened.subject, classes=tuple(f"called {name}" for name in session.classes))
    other = Session(replace(session.opened, subject=called), session.report)
    place = save_edited(other, [Edit(*strongest(session), 0.5)])
    assert read_header(place / "model.safetensors")["classes"] == [str(digit) for digit in range(10)]


def test_many_savers_never_share_a_folder(client, session, folder):
    feature, target = strongest(session)
    count = len(list((folder / "edited").iterdir())) if (folder / "edited").exists() else 0

    def save(number: int) -> str:
        edits = [{"feature": feature, "target": target, "factor": number / 10}]
        return client.post("/api/save", json={"edits": edits}).json()["folder"]

    with ThreadPoolExecutor(6) as pool:
        folders = list(pool.map(save, range(6)))
    assert len(set(folders)) == 6
    assert len(list((folder / "edited").iterdir())) == count + 6
    for number, place in enumerate(folders):
        with open(f"{place}/edits.json") as file:
            assert json.load(file)["edits"][0]["factor"] == number / 10


def test_saving_nothing_or_nowhere(client, session, folder, monkeypatch, tmp_path):
    refused(client.post("/api/save", json={"edits": []}), 422, "no edit to save")
    (tmp_path / "edited").write_text("a file is in the way")
    monkeypatch.setattr(session, "folder", tmp_path)
    edits = [{"feature": strongest(session)[0], "factor": 0.0}]
    refused(client.post("/api/save", json={"edits": edits}), 500, "annot write to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edited"]


# ------------------------------------------------------------------------------------------------------ bad questions


@pytest.mark.parametrize(
    ("path", "asked", "status", "words"),
    [
        ("predict", {"image": {"example": 10**6}}, 404, "there is no 1000000"),
        ("predict", {"image": {"example": -1}}, 422, "image.example"),
        ("predict", {"image": {"example": 1.5}}, 422, "image.example"),
        ("predict", {"image": {"example": "../../etc/passwd"}}, 422, "image.example"),
        ("predict", {"image": {"upload": "../../etc/passwd"}}, 422, "image.upload"),
        ("predict", {"image": {"upload": "/etc/passwd"}}, 422, "image.upload"),
        ("predict", {"image": {"upload": "nothing"}}, 404, "no longer here"),
        ("predict", {"image": {"path": "/etc/passwd"}}, 422, "image.path"),
        ("predict", {"image": {}}, 422, "an example's number or an upload's key"),
        ("predict", {"image": {"example": 1, "upload": "x"}}, 422, "an example's number or an upload's key"),
        ("predict", {"image": {"example": 1}, "against": 10}, 422, "classes 0 to 9"),
        ("predict", {"image": {"example": 1}, "file": "x"}, 422, "file"),
        ("effect", {"edits": [{"feature": 10**6, "factor": 0}]}, 422, "features 0.."),
        ("effect", {"edits": [{"feature": 0, "target": 10, "factor": 0}]}, 422, "classes 0..9"),
        ("effect", {"edits": [{"feature": 0, "factor": -1}]}, 422, "edits.0.factor"),
        ("effect", {"edits": [{"feature": 0, "factor": 1e9}]}, 422, "edits.0.factor"),
        ("effect", {"edits": [{"feature": 0, "factor": "0"}]}, 422, "edits.0.factor"),
        ("effect", {"edits": [{"feature": True, "factor": 0}]}, 422, "edits.0.feature"),
        ("effect", {"edits": [{"feature": 0, "factor": 1}] * 201}, 422, "edits"),
        ("effect", {"edits": 3}, 422, "edits"),
        ("effect", [], 422, ""),
        ("save", {"edits": [{"feature": 0, "factor": 0}], "path": "/tmp/x"}, 422, "path"),
        ("save", {"edits": [{"feature": 0, "factor": 0}], "name": "../x"}, 422, "name"),
        ("lime", {"image": {"example": 1}, "perturbations": 10**6}, 422, "perturbations"),
        ("lime", {"image": {"example": 10**6}}, 404, "there is no"),
        ("lime", {"image": {"example": 1}, "edits": [{"feature": 10**6, "factor": 0}]}, 422, "features 0.."),
    ],
)
def test_bad_questions_are_one_sentence(path, asked, status, words, client):
    refused(client.post(f"/api/{path}", json=asked), status, words)


def test_what_is_no_json_is_refused(client):
    refused(client.post("/api/effect", content=b"{", headers={"content-type": "application/json"}), 422)
    refused(client.post("/api/effect", content=b'{"edits": [{"feature": 0, "factor": NaN}]}'), 422)
    refused(client.get("/api/examples", params={"outcome": "x"}), 422, "outcome")
    refused(client.get("/api/examples", params={"count": 10**6}), 422, "count")
    refused(client.get("/api/predict"), 405, "another kind of request")


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/api/jobs/..%2f..%2fetc%2fpasswd"])
def test_no_path_leads_to_a_file(path, client):
    refused(client.get(path), 404)


def test_a_bug_is_told_in_one_sentence(app, session, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(session, "effect", broken)
    careless = TestClient(app, base_url=LOCAL, headers=HEADERS, raise_server_exceptions=False)
    response = careless.post("/api/effect", json={"edits": []})
    refused(response, 500, "the terminal says more")
    assert "secret" not in response.text


# ----------------------------------------------------------------------------------------------------------- security


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "0.0.0.0:8765", ""])
def test_another_host_is_refused(host, client):
    refused(client.get("/", headers={"host": host}), 421, "not the explorer's own")
    refused(client.post("/api/effect", json={}, headers={"host": host}), 421)


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "LOCALHOST", "[::1]:8765", "localhost:9000"])
def test_this_machine_has_several_names(host, client):
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://127.0.0.1:9999",
        "http://localhost:8765",
        "file://",
        "",
        "http://[",
        "ftp://127.0.0.1:8765",
    ],
)
def test_another_origin_is_refused(origin, client):
    refused(client.post("/api/effect", json={}, headers={"origin": origin}), 403, "Another site's page")


def test_the_own_origin_is_welcome(client):
    assert client.post("/api/effect", json={}, headers={"origin": LOCAL}).status_code == 200


def test_what_does_something_needs_our_header(app):
    bare = TestClient(app, base_url=LOCAL)
    for path in ("effect", "predict", "lime", "save", "upload"):
        refused(bare.post(f"/api/{path}", json={}), 403, "x-bndl")
    refused(bare.delete("/api/jobs/x"), 403, "x-bndl")
    assert bare.get("/api/examples").status_code == 200
    preflight = bare.options("/api/save", headers={"origin": LOCAL, "access-control-request-headers": "x-bndl"})
    assert preflight.status_code == 403
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_other_sites_may_link_to_the_page_but_not_read_it(client):
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200
    for site in ("cross-site", "same-site"):
        refused(client.get("/api/examples", headers={"sec-fetch-site": site}), 403)
    assert client.get("/api/examples", headers={"sec-fetch-site": "same-origin"}).status_code == 200


@pytest.fixture(scope="module")
def guarded(session):
    return create_app(session, rules=Rules.of("0.0.0.0", port=8765, token=TOKEN))


def test_a_token_opens_once_and_a_cookie_keeps_it_open(guarded):
    visitor = TestClient(guarded, base_url="http://machine.example:8765", headers=HEADERS)
    refused(visitor.get("/"), 401, "token is needed")
    refused(visitor.get("/?token=wrong"), 401)
    refused(visitor.get("/?token="), 401)
    refused(visitor.get("/api/examples", params={"token": TOKEN}), 401)  # the address of the page alone
    response = visitor.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert response.status_code == 303
    assert response.headers["location"] == "/"
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert TOKEN not in cookie
    assert visitor.get("/").status_code == 200
    assert visitor.post("/api/effect", json={}).status_code == 200
    refused(visitor.post("/api/effect", json={}, headers={"origin": "http://evil.example"}), 403)


def test_a_token_as_a_header(guarded):
    visitor = TestClient(guarded, base_url="http://machine.example:8765", headers=HEADERS)
    right = {"authorization": f"Bearer {TOKEN}"}
    assert visitor.post("/api/effect", json={}, headers=right).status_code == 200
    for wrong in ("Bearer x", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer é".encode("latin-1")):
        refused(visitor.post("/api/effect", json={}, headers={"authorization": wrong}), 401)
    refused(visitor.get("/api/examples", headers={"cookie": "bndl-8765=guess"}), 401)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "machine.example"])
def test_no_token_no_other_host(host):
    with pytest.raises(bndl.InputError, match="a token is needed"):
        Rules.of(host, port=1, token=None)
    with pytest.raises(bndl.InputError, match="at least 12"):
        Rules.of(host, port=1, token="short")
    assert Rules.of(host, port=1, token=TOKEN).hosts is None


def test_a_token_also_holds_on_this_machine(session):
    app = create_app(session, rules=Rules.of("127.0.0.1", port=8765, token=TOKEN))
    visitor = TestClient(app, base_url=LOCAL, headers=HEADERS)
    refused(visitor.get("/"), 401)
    refused(visitor.get("/", params={"token": TOKEN}, headers={"host": "evil.example"}), 421)


# ---------------------------------------------------------------------------------------------------- several at once


def test_many_questions_at_once_get_the_answers_that_each_would_get_alone(client, session):
    feature, target = strongest(session)
    edits = [[], [{"feature": feature, "target": target, "factor": 0.0}], [{"feature": feature, "factor": 2.0}]]
    questions = [("/api/predict", {"image": {"example": i}, "edits": e}) for i in (0, 5, 9) for e in edits]
    questions += [("/api/effect", {"edits": e}) for e in edits]
    alone = {json.dumps(question): client.post(question[0], json=question[1]).json() for question in questions}
    job = client.post("/api/lime", json={"image": {"example": 1}, "perturbations": 400, "edits": edits[1]}).json()[
        "job"
    ]

    def one(number: int) -> bool:
        question = questions[number % len(questions)]
        response = client.post(question[0], json=question[1])
        return response.status_code == 200 and response.json() == alone[json.dumps(question)]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(5 * len(questions))))
    assert finished(client, job)["state"] == "done"


# ---------------------------------------------------------------------------------------------------------- the socket


def test_a_port_that_is_taken_is_said_at_once():
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert port > 0
        with pytest.raises(bndl.InputError, match=f"port {port} of 127.0.0.1 cannot be had"):
            bind("127.0.0.1", port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(bndl.InputError, match="cannot be had"):
            bind("127.0.0.1", other.getsockname()[1])


def test_a_host_that_is_none():
    with pytest.raises(bndl.InputError, match="is no address of this machine"):
        bind("no.such.host.invalid", 0)
