"""The explorer in a real Chromium: sliders, dropped files, swaps, modalities, sweeps, links, keys, hostile input."""

import io
import re
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

import unbraid as ub
from tests.explore.conftest import QUICK
from unbraid.explore.facts import describe_latents

pytestmark = pytest.mark.browser

DROP = """([bytes, name, type]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], name, { type }));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""
PIXELS = """(selector) => {
  const canvas = document.querySelector(selector);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [...data].filter((_, i) => i % 4 === 0);
}"""
MAIN = ".stage .pictures canvas"


def pixels(page, selector=MAIN):
    return np.array(page.evaluate(PIXELS, selector), dtype=float)


def drop(page, data, name="picture.png", kind="image/png"):
    page.evaluate(DROP, [list(data), name, kind])


def message(page):
    page.wait_for_selector("#message.shown")
    return page.text_content("#message")


def png(side=40, at=(8, 8)):
    image = np.zeros((side, side), np.uint8)
    image[at[0] : at[0] + 8, at[1] : at[1] + 8] = 255
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def move(page, place, share):
    """Drag a slider to a share of its way, as an input event does."""
    slider = page.locator(".slider input").nth(place)
    low, high = (float(slider.get_attribute(end)) for end in ("min", "max"))
    slider.evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", str(low + share * (high - low)))


def test_moving_a_slider_moves_the_picture_and_undo_brings_it_back(visit, demo_page):
    page = visit(demo_page)
    before = pixels(page)
    move(page, 0, 0.95)
    moved = pixels(page)
    assert np.abs(moved - before).max() > 50
    move(page, 0, 0.9)
    page.get_by_role("button", name="Undo").click()
    assert np.array_equal(pixels(page), before)  # one gesture is one step
    page.get_by_role("button", name="Redo").click()
    assert not np.array_equal(pixels(page), before)


def test_pictures_are_those_of_torch(visit, demo_page):
    code = [0.5, -1.0, 0.25, 0.0, 1.0, -0.5]
    page = visit(demo_page, "#code=" + ",".join(map(str, code)))
    expected = ub.load("demo", device="cpu").decode(torch.tensor([code]))[0].flatten().numpy() * 255
    assert np.abs(pixels(page) - expected).max() <= 0.51  # a canvas holds whole levels


def test_chips_and_scores_stand_beside_their_chance(visit, demo_page):
    page = visit(demo_page)
    chips = [chip.get_attribute("title") for chip in page.locator(".chip").all()]
    found = [re.fullmatch(r"knows (\d+)% of .+; chance: (\d+\.\d)%", chip) for chip in chips]
    assert found and all(each and float(each[2]) < int(each[1]) / 3 for each in found)
    page.locator("#about summary").first.click()
    heads = page.locator("#about th[scope=col]").all_text_contents()
    score = next(score for score in ub.load("demo", device="cpu").scores if score.chance is not None)
    row = page.locator("#about tbody tr").filter(has=page.locator(f"th:text-is('{score.name}')"))
    shown = dict(zip(heads, row.locator("th, td").all_text_contents(), strict=True))
    assert float(shown["chance"]) == pytest.approx(score.chance, abs=1e-4)
    assert float(shown["ceiling"]) == pytest.approx(score.ceiling, abs=1e-4)
    assert f"chance: {shown['chance']}" in row.get_attribute("title")


def test_a_dropped_picture_is_encoded(visit, demo_page):
    page = visit(demo_page)
    drop(page, png(at=(24, 24)))
    assert "Encoded" in message(page)
    low_right = pixels(page).reshape(32, 32)
    drop(page, png(at=(4, 4)))
    page.wait_for_timeout(300)
    high_left = pixels(page).reshape(32, 32)
    assert low_right[16:, 16:].sum() > 3 * low_right[:16, :16].sum()
    assert high_left[:16, :16].sum() > 3 * high_left[16:, 16:].sum()


def test_grid_map_mix_and_draws_lead_somewhere(visit, demo_page):
    page = visit(demo_page)
    page.wait_for_timeout(600)
    before = pixels(page)
    page.locator(".grid canvas").first.click(position={"x": 5, "y": 5})
    assert not np.array_equal(pixels(page), before)
    for target in (".board > canvas", ".draws .thumb >> nth=1", ".results .thumb >> nth=0", ".source .thumb >> nth=3"):
        before = pixels(page)
        page.locator(target).first.click()
        assert not np.array_equal(pixels(page), before), target


def test_swapping_everything_gives_the_other_picture(visit, demo_page):
    page = visit(demo_page)
    for box in page.locator(".parts input").all():
        box.check()
    page.locator("summary", has_text="unused").click() if page.locator("summary", has_text="unused").count() else None
    page.wait_for_timeout(500)
    page.locator(".end-picture .thumb").nth(1).click()
    other = pixels(page)
    page.locator(".results .thumb").nth(0).click()
    assert np.abs(pixels(page) - other).mean() < 3  # unused latents are not swapped


def code_of(page):
    """The code that the page shows, from a link to it."""
    page.get_by_role("button", name="Copy link").click()
    return np.array([float(each) for each in re.search("code=([^&]*)", page.url)[1].replace("%2C", ",").split(",")])


@pytest.mark.parametrize("kind", ["modalities_run", pytest.param("refined_run", marks=pytest.mark.slow)])
def test_blocks_are_swapped_between_two_pictures(visit, request, kind):
    """One block of B's code in A's, and what PyTorch draws of it."""
    run = request.getfixturevalue(kind)
    page = visit(run.explore(weights=16, open=False).path)
    names = [text.strip() for text in page.locator(".parts label").all_text_contents()]
    assert names == list(run.model.space.blocks) and len(names) > 1
    codes = []
    for end in range(2):
        page.locator(".end-picture .thumb").nth(end).click()
        codes.append(code_of(page))
    for name, box in zip(names, page.locator(".parts input").all(), strict=True):
        box.set_checked(name == names[-1])
    page.locator(".results .thumb").nth(0).click()
    width = run.model.space.blocks[names[-1]].width
    mixed = np.concatenate([codes[0][:-width], codes[1][-width:]])
    assert np.array_equal(code_of(page), mixed) and not np.array_equal(mixed, codes[0])
    code = torch.tensor(mixed[None], dtype=torch.float32)
    with torch.no_grad():
        drawn = list(run.model.expected(code).values()) if run.model.multimodal else run.model.decode_stages(code)
    for place, picture in enumerate(each for each in drawn if each.ndim == 4):
        found = pixels(page, f".pictures figure:nth-child({place + 1}) canvas")
        assert np.abs(found - picture.flatten().numpy() * 255).max() <= 0.51


def test_a_missing_modality_is_completed(visit, modalities_page):
    page = visit(modalities_page)
    box = page.get_by_role("checkbox", name="give right to the model")
    left, right = ".pictures figure:nth-child(1) canvas", ".pictures figure:nth-child(2) canvas"
    before = pixels(page, left), pixels(page, right)
    box.uncheck()
    assert page.locator(".given .absent").count() == 1
    assert not np.array_equal(pixels(page, right), before[1])
    assert pixels(page, right).std() > 0
    box.check()
    assert np.array_equal(pixels(page, right), before[1])
    page.get_by_role("checkbox", name="give left to the model").uncheck()
    page.get_by_role("checkbox", name="give word to the model").uncheck()
    box.uncheck()  # nothing is given: the prior
    assert page.locator(".given .absent").count() == 3


def test_a_table_has_names_and_units(visit, tmp_path):
    (tmp_path / "boxes.csv").write_text("width,kind\n" + "".join(f"{400 + row},{'ab'[row % 2]}\n" for row in range(40)))
    run = ub.train("vae", data=tmp_path / "boxes.csv", z=2, root=tmp_path, **QUICK)
    page = visit(run.explore(open=False).path)
    bars = ".stage .pictures .bars"
    assert page.locator(f"{bars} span").all_inner_texts() == ["width", "kind=a", "kind=b"]
    width, first, second = page.locator(f"{bars} small").all_inner_texts()
    code = [float(page.locator(".slider input").nth(i).input_value()) for i in range(2)]
    order = [latent["columns"][0] for latent in describe_latents(run.evaluation)]
    drawn = run.decode(torch.tensor([[code[order.index(column)] for column in range(2)]]))[0]
    assert float(width) == pytest.approx(float(drawn[0]), abs=1.5)  # three digits
    assert int(first[:-1]) == pytest.approx(100 * float(drawn[1]), abs=1)
    assert int(first[:-1]) + int(second[:-1]) == pytest.approx(100, abs=1)
    assert "row" in page.locator("#start h2").inner_text()


def test_a_member_opens_from_the_table(visit, sweep_page):
    page = visit(sweep_page)
    assert page.locator("table.runs tbody tr").count() == 4
    page.get_by_label("filter the runs").fill("beta=4")
    assert page.locator("table.runs tbody tr").count() == 2
    before = pixels(page)
    page.locator("table.runs tbody tr .link").nth(1).click()
    page.wait_for_selector("table.runs tr.shown")
    page.wait_for_selector('html:not([data-member="0"])', state="attached")
    assert not np.array_equal(pixels(page), before)
    page.get_by_label("filter the runs").fill("")
    page.get_by_role("button", name="beta", exact=True).click()
    assert page.locator("th[aria-sort=ascending]").count() == 1
    assert page.locator(".charts circle").count() == 8


LAYOUT = """() => [...document.querySelectorAll(".charts svg")].map((chart) => {
  const box = ({ left, right, top, bottom }) => ({ left, right, top, bottom });
  const texts = [...chart.querySelectorAll("text")];
  return {
    chart: box(chart.getBoundingClientRect()),
    texts: texts.map((text) => ({ words: text.textContent, ...box(text.getBoundingClientRect()) })),
  };
})"""


def test_charts_show_every_word_and_rows_take_one_line(visit, sweep_page):
    page = visit(sweep_page)
    for found in page.evaluate(LAYOUT):
        chart, texts = found["chart"], found["texts"]
        for text in texts:
            assert chart["left"] <= text["left"] and text["right"] <= chart["right"], text
        for i, one in enumerate(texts):
            for other in texts[:i]:
                apart = one["right"] <= other["left"] or other["right"] <= one["left"]
                assert apart or one["bottom"] <= other["top"] + 2 or other["bottom"] <= one["top"] + 2, (one, other)
        ticks = [text["words"] for text in texts if re.fullmatch(r"-?[\d.]+(e-?\d+)?", text["words"])]
        assert all(len(tick) <= 9 for tick in ticks) and len(ticks) >= 4
    heights = page.locator("table.runs tbody .link").evaluate_all("all => all.map((e) => e.getClientRects()[0].height)")
    assert max(heights) < 30


def test_the_page_names_its_run(visit, demo_page):
    page = visit(demo_page)
    assert page.locator("h1").inner_text() == "demo beta-tcvae on sprites-small"
    assert page.title().startswith("demo: beta-tcvae")


def test_a_link_restores_the_state(visit, demo_page):
    page = visit(demo_page)
    move(page, 1, 0.2)
    seen = pixels(page)
    page.get_by_role("button", name="Copy link").click()
    fragment = re.search("#.*", page.url)[0]
    assert "code=" in fragment
    assert np.abs(pixels(visit(demo_page, fragment)) - seen).max() <= 1


@pytest.mark.parametrize(
    "code",
    [
        "NaN,0,0,0,0,0",
        "0,0,<script>,0,0,0",
        *(pytest.param(code, marks=pytest.mark.slow) for code in ("1,2", "1e999,0,0,0,0,0", ",,,,,")),
    ],
)
def test_a_wrong_link_is_a_message(visit, demo_page, code):
    page = visit(demo_page, f"#code={code}")
    assert "link" in message(page)
    move(page, 0, 0.9)
    assert np.isfinite(pixels(page)).all()


def test_everything_can_be_done_with_keys(visit, demo_page):
    page = visit(demo_page)
    before = pixels(page)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "range":
            break
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    assert not np.array_equal(pixels(page), before)
    page.keyboard.press("Control+z")
    assert np.array_equal(pixels(page), before)
    page.locator(".board > canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert not np.array_equal(pixels(page), before)
    unnamed = (
        "[...document.querySelectorAll('button, input, select, canvas[role]')].filter(e => !e.hidden && !(e.textContent"
    )
    unnamed += ".trim() || e.getAttribute('aria-label') || e.title || e.closest('label')?.textContent.trim())).length"
    assert page.evaluate(unnamed) == 0


def huge_png():
    """The header of a picture of 100 megapixels, and no more."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"\x78\x9c") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (huge_png(), "megapixels"),
        (png()[:60] + b"\x00" * 40, "damaged"),
        (b"not a picture at all", "no picture"),
        pytest.param(b"", "no picture", marks=pytest.mark.slow),
    ],
)
def test_a_bad_file_is_a_message_and_the_page_lives(visit, demo_page, data, word):
    page = visit(demo_page)
    drop(page, data)
    assert word in message(page)
    before = pixels(page)
    move(page, 0, 0.05)
    assert not np.array_equal(pixels(page), before)


def test_names_are_data(visit, hostile_page):
    page = visit(hostile_page)
    page.locator(".board > canvas").hover()
    page.keyboard.press("Tab")
    assert page.evaluate("document.body.dataset.hacked") is None
    assert page.evaluate("document.images.length") == 0
    assert "onerror" in page.text_content("#explorer")  # shown as it is


def test_files_can_be_saved(visit, demo_page):
    page = visit(demo_page)
    page.locator(".menu summary").click()
    for name, first in (("Picture (PNG)", b"\x89PNG"), ("Traversal (GIF) of", b"GIF89a"), ("Codes (CSV)", b'"row"')):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=name).click()
        content = waiting.value.path().read_bytes()
        assert content.startswith(first)
        if first == b"GIF89a":
            frames = Image.open(io.BytesIO(content))
            assert frames.n_frames == 46
            frames.seek(20)
            assert np.asarray(frames.convert("L")).max() > 100


def test_it_fits_a_phone_and_the_dark(visit, demo_page):
    page = visit(demo_page, viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    before = pixels(page)
    page.locator(".slider input").first.tap(position={"x": 8, "y": 10})
    assert not np.array_equal(pixels(page), before)
