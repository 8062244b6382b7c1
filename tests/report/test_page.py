"""The page holds everything, loads nothing and believes nobody."""

import re
import sys
from html.parser import HTMLParser

import pytest
import torch

from tests.report.conftest import make_evaluation, make_folder, measure
from tests.support.messages import names
from tests.support.tiny_runs import tiny_config, tiny_data
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import UsageError
from unbraid.metrics import Evaluation, Score
from unbraid.models import build
from unbraid.report import write_report
from unbraid.report.latent_factor import is_nominal
from unbraid.report.run_page import describe_scored_rows, describe_training, format_duration, format_number, render

SECTIONS = (
    "headline scores training traversal reconstructions samples latents-and-factors information settings environment"
)
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Reader(HTMLParser):
    """Collects tags, and checks that every element is closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def attributes(self, name):
        return [attrs[name] for _, attrs in self.tags if name in attrs]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    torch.manual_seed(0)
    folder, evaluation = make_folder(tmp_path_factory.mktemp("page") / "run"), make_evaluation()
    return write_report(folder, evaluation, measure(evaluation)).read_text(encoding="utf-8")


def test_scores_of_metrics_that_no_longer_exist_are_shown(folder, evaluation):
    old = {"metric": "dci", "protocol": "lightgbm-depth3", "value": 0.5625, "samples": 15_000, "part": "completeness"}
    score = Score.from_record({**old, "predictor": "lightgbm-depth3", "details": {"rows": "all", "settings": {}}})
    assert score.has_default_settings
    assert not score.deterministic
    page = write_report(folder, evaluation, [score]).read_text(encoding="utf-8")
    assert "lightgbm-depth3" in page
    assert "0.562" in page


def test_every_section_is_there_and_the_page_parses(page):
    reader = Reader(page)
    assert reader.open == []
    ids = reader.attributes("id")
    assert set(SECTIONS.split()) <= set(ids)
    assert len(ids) == len(set(ids))
    inside = [href[1:] for href in reader.attributes("href") if href.startswith("#")]
    assert set(inside) <= set(ids)


def test_the_page_loads_nothing(page):
    reader = Reader(page)
    sources = reader.attributes("src") + reader.attributes("href") + reader.attributes("xlink:href")
    assert sources
    assert all(source.startswith(("#", "data:image/png;base64,")) for source in sources)
    assert not [tag for tag, _ in reader.tags if tag in ("script", "link", "iframe", "object")]
    assert not re.search(r"@import|url\((?!#)", page)


def test_words_from_outside_are_escaped(page):
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_pictures_and_charts_have_words_for_those_who_cannot_see_them(page):
    for tag, attrs in Reader(page).tags:
        if tag == "img":
            assert attrs["alt"]
        if tag == "figure":
            assert attrs["aria-label"]


def test_scores_are_shown_with_protocol_and_terms_with_estimator(page, scores):
    for score in scores:
        assert score.protocol in page
        assert format_number(score.value) in page
    assert "tc/stratified" in page


def test_page_without_labels_history_or_scores(tmp_path, folder):
    (folder.path / "history.jsonl").unlink()
    evaluation = Evaluation(build(tiny_config(), (3, 8, 8)), tiny_data(channels=3, factors=False))
    page = render(folder, evaluation, [])
    assert Reader(page).open == []
    assert "nan" not in page
    assert "<svg" not in page, "without a history there is no curve"


def test_page_of_observations_that_are_no_images(folder):
    vectors = FactorDataset("vectors", Pixels(torch.rand(10, 5), (5,)))
    page = render(folder, Evaluation(build(tiny_config("gaussian"), (5,)), vectors), [])
    assert names(page, 10)
    assert 'id="traversal"' in page  # how features move
    assert 'href="#traversal"' in page
    assert 'id="reconstructions"' not in page


def test_the_page_says_what_was_scored(evaluation):
    assert names(describe_scored_rows(evaluation), 24)
    held_out = Evaluation(evaluation.model, evaluation.dataset, rows=torch.arange(6))
    assert names(describe_scored_rows(held_out), 6)


def test_the_name_is_the_title_and_training_has_rows_and_time(folder, evaluation):
    named = folder.path.name
    page = render(folder, evaluation, [])
    assert re.search(f"<title>{re.escape(named)}", page)
    config = folder.config
    history = [{"step": 10, "images_per_second": 5.0}, {"step": 20, "images_per_second": 10.0}]
    words = describe_training(config, history, 24)
    seconds = 10 * config.training.batch * (1 / 5 + 1 / 10)
    assert names(words, 24) and format_duration(seconds) in words
    assert f"20 of {config.training.steps:,} steps" in words  # it stopped early
    assert "about" not in describe_training(config, [], None)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 second"), (59, "59 seconds"), (150, "2.5 minutes"), (36000, "10 hours")]
)
def test_durations_are_short(seconds, words):
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    ("factor", "nominal"),
    [
        (Factor("digit", 10), True),
        (Factor("object_shape", 4), True),
        (Factor("size", 2, ("a", "b")), True),
        (Factor("scale", 6), False),
    ],
)
def test_categories_are_not_joined_by_lines(factor, nominal):
    assert is_nominal(factor) == nominal


def test_the_page_is_the_same_every_time(folder, evaluation, scores):
    assert render(folder, evaluation, scores) == render(folder, evaluation, scores)


def test_a_missing_extra_is_named(folder, evaluation, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=r"unbraid\[report\]"):
        write_report(folder, evaluation, [])
    assert not (folder.path / "report.html").exists()


def test_no_global_figure_is_made(page):
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (-24.67, "−24.67"), (1234.5, "1,234"), (0.0, "0.000"), (1e-6, "1.00e−06"), (None, "–")],
)
def test_numbers_are_short(value, text):
    assert format_number(value) == text
    assert format_number(float("nan")) == "nan"


def test_a_score_of_unknown_protocol_is_shown(folder, evaluation):
    assert "homemade" in render(folder, evaluation, [Score("mine", "homemade", 0.5, 3)])
