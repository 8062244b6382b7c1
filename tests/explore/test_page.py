"""The file that an explorer is: one text, a strict policy, weights that come back, and the demo that is built in."""

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import unbraid as ub
from tests.support.command import unbraid
from tests.support.node import case, run_cases
from unbraid.errors import UsageError
from unbraid.explore.bundle import join_modules, render, to_text
from unbraid.explore.graph import Graph, Node
from unbraid.explore.model import measure_encoder, trace_model
from unbraid.explore.page_file import ExplorerPage, has_display
from unbraid.explore.rounding import InputMoments
from unbraid.explore.rows import Numbers, describe_rows
from unbraid.explore.trace import trace
from unbraid.explore.weights import Weights, bits_for


def test_the_policy_allows_this_script_and_style_alone(demo_page):
    text = demo_page.read_text(encoding="utf-8")
    policy = re.search('Content-Security-Policy" content="([^"]*)"', text)[1]
    script = re.search('<script type="module">(.*?)</script>', text, re.DOTALL)[1]
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    packed = re.search('id="script">(.*?)</script>', text, re.DOTALL)[1]
    assert gzip.decompress(from_text(packed)).decode() == join_modules()
    for part in (script, join_modules(), style):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy and "'unsafe-eval'" not in policy
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text)
    assert " style=" not in text and not re.search(r"\son\w+=", text.partition("<script")[0])


def test_markup_in_data_cannot_leave_its_element():
    text = render("</title><script>", {"name": "</script><script>alert(1)</script>{{SCRIPT}}"}, {})
    assert text.count("</script>") == 3
    assert json.loads(re.search('id="data">(.*?)</script>', text, re.DOTALL)[1])["name"].startswith("</script>")


def test_modules_are_joined_without_imports():
    script = join_modules()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert "innerHTML" not in script and "eval(" not in script


def from_text(text):
    """The bytes of a text of seven bits for each character."""
    numbers = np.array([{0xA1: 0, 0xA2: 13, 0xA3: 60}.get(ord(c), ord(c)) for c in text], np.uint8)
    bits = np.unpackbits(numbers[:, None], axis=1)[:, 1:].reshape(-1)
    return np.packbits(bits[: len(bits) // 8 * 8]).tobytes()


def test_text_of_seven_bits_comes_back():
    data = np.random.default_rng(0).integers(0, 256, 1001, dtype=np.uint8).tobytes()
    text = to_text(data)
    assert not set(text) & {"\0", "\r", "<"}
    assert from_text(text) == data


@pytest.mark.parametrize(("precision", "error"), [("float32", 0), ("float16", 5e-4), (16, 2e-5), (11, 6e-4), (8, 5e-3)])
def test_weights_come_back(precision, error, tmp_path):
    """Through the page's own reader; the error is relative to a row's largest weight."""
    weight = torch.randn(256, 256) * torch.logspace(-3, 2, 256)[:, None]
    graph = Graph({0: (-256, 256)}, {1: weight}, {2: Node("binary", (0, 1), (-256, 256), {"kind": "add"})}, [2])
    (found,) = run_cases([{**case(graph, torch.zeros(1, 256, 256), precision=precision), "rows": 1}], tmp_path)
    made = torch.from_numpy(found[0].copy()).view(256, 256)
    assert float(((made - weight).abs() / weight.abs().amax(1, keepdim=True)).max()) <= error


def test_small_tensors_have_more_bits():
    assert [bits_for(size, 16) for size in (2**20, 2**18, 2**16, 2**14, 2**12)] == [14, 15, 16, 17, 18]
    assert bits_for(2**20, 5) == 4 and bits_for(1, 16) == 24


@pytest.mark.parametrize("make", [lambda: torch.nn.Linear(60, 40), lambda: torch.nn.Conv2d(8, 40, 3)])
def test_errors_of_rounding_cancel_on_data(make, tmp_path):
    """On inputs like those that were measured, through the page's reader; beside rounding to the nearest."""
    layer = make()
    mixing = torch.randn(6, 60 if isinstance(layer, torch.nn.Linear) else 8)  # few directions, as activations have
    seen, other = (torch.randn(200, 6) @ mixing for _ in range(2))
    if isinstance(layer, torch.nn.Conv2d):
        seen, other = (each[..., None, None].expand(-1, -1, 6, 6).contiguous() for each in (seen, other))
    with torch.no_grad(), InputMoments() as found:
        layer(seen)
    graph = trace(layer, other)
    cases = [case(graph, other, precision=4, moments=moments) for moments in (None, found.moments)]
    with torch.no_grad():
        expected = layer(other).flatten()
    plain, better = (
        float((torch.from_numpy(each[0].copy()) - expected).square().mean()) for each in run_cases(cases, tmp_path)
    )
    assert better < plain / 10


def test_a_large_encoder_has_fewer_bits_and_the_decoder_keeps_its_own(tmp_path):
    """`make demo`'s page, but of two steps: most of it is the encoder, whose codes stay right."""
    from unbraid.cli.train import DEMO_SETTINGS, MAX_KB_OF_DEMO

    run = ub.train(**{**DEMO_SETTINGS, "steps": 2}, root=tmp_path, device="cpu")
    page = run.explore(max_kb=MAX_KB_OF_DEMO, open=False).path
    assert 200_000 < page.stat().st_size <= 300_000
    assert "16 bits in the decoder, 4 in the encoder" in page.read_text(encoding="utf-8")
    graph, moments = trace_model(run.evaluation).encode, measure_encoder(run.evaluation)
    positions = run.evaluation.choose(64)
    images = run.dataset.observed(run.evaluation.rows[positions])["x"]
    ((found,),) = run_cases([case(graph, images, torch.ones(64, 1), precision=4, moments=moments)], tmp_path)
    codes = run.evaluation.means[positions]
    assert float((torch.from_numpy(found.copy()).view_as(codes) - codes).abs().max()) < 0.02 * float(codes.abs().max())


def test_equal_weights_are_stored_once():
    weights = Weights(16)
    assert weights.add([torch.ones(3), torch.zeros(3), torch.ones(3)]) == [0, 1, 0]
    for wrong in ("float8", 3, 17):
        with pytest.raises(UsageError, match="weights"):
            Weights(wrong)


def test_the_demo_is_built_in(demo_page):
    run = ub.load("demo", device="cpu")
    assert run.folder.finished
    run.folder.check_unchanged()
    assert next(score.value for score in run.scores if score.name == "mig/histogram-mean") > 0.8
    assert demo_page.stat().st_size <= 300_000
    assert "mig/exact" in run._repr_html_()


def test_the_packaged_demo_was_trained_with_the_demo_settings():
    from unbraid.cli.train import DEMO_SETTINGS

    config = ub.load("demo").config
    assert config.encoder.settings["hidden"] == (64, 64)  # smaller, so that the page has 300 kB
    assert config.objective.settings["beta"] == DEMO_SETTINGS["beta"]
    assert config.training.steps == DEMO_SETTINGS["steps"]


def test_the_command_writes_the_page_and_the_report_links_to_it(tmp_path):
    page = tmp_path / "page.html"
    assert str(page) in unbraid("explore", "demo", "--output", page, "--no-open", "--weights", "8")
    assert page.stat().st_size < 250_000
    run = ub.load("demo", device="cpu")
    run.explore(open=False)
    assert 'href="explore.html"' in Path(run.report()).read_text()


def test_a_notebook_shows_the_page(demo_page, monkeypatch):
    page = ExplorerPage(demo_page)
    assert str(page) == str(demo_page) and Path(page) == demo_page
    assert "srcdoc=" in page._repr_html_() and "<script" not in page._repr_html_()
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert not has_display()
    assert not page.open()


def test_rows_of_the_page_have_the_numbers_of_the_table(tmp_path):
    """Column `line` holds the number of its row in the file, and every third row is left out."""
    lines = [f"{row},{row % 7 if row % 3 else ''}" for row in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["line,other", *lines]))
    settings = {"data": str(tmp_path / "table.csv"), "data.incomplete": "drop", "steps": 2, "batch": 8}
    run = ub.train("vae", root=tmp_path, name="table", device="cpu", **settings)
    numbers = Numbers()
    described = describe_rows(run.evaluation, numbers)
    place, count = described["observed"][0]["numbers"]
    shown = np.frombuffer(numbers.bytes(), "<f4")[place : place + count].reshape(described["count"], -1)[:, 0]
    (line,) = (column for column in run.evaluation.dataset.columns if column.name == "line")
    assert described["places"] == np.rint(shown * line.scale + line.mean).astype(int).tolist()
    assert described["places"] != list(range(described["count"]))
