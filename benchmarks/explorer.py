"""Size and speed of explorers in a real Chromium: `python benchmarks/explorer.py [RUN]`.

Without a run, a conv-daunhawer model is trained on sprites for a few steps (its size and speed are those of a longer
training). Printed are the page's size, the time to open it from disk, from a slider's event to the drawn picture, and
of a whole traversal grid of 10 latents by 9 columns; then how far the page's pictures are from PyTorch's.
"""

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unbraid as ub

EVENTS = 200
GRIDS = 7
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SLIDE = """async (events) => {
  const slider = document.querySelector(".slider input"), times = [];
  for (let i = 0; i < events; i++) {
    const share = 0.5 + 0.5 * Math.sin(i);
    slider.value = Number(slider.min) + share * (slider.max - slider.min);
    const start = performance.now();
    slider.dispatchEvent(new Event("input"));
    times.push(performance.now() - start);
    if (i % 10 === 9) await new Promise(requestAnimationFrame);
  }
  return times;
}"""
GRID = """async (count) => {
  const times = [], slider = document.querySelector(".slider input");
  for (let i = 0; i < count; i++) {
    performance.clearMeasures("grid");
    slider.value = Number(slider.min) + (i + 0.5) / count * (slider.max - slider.min);
    slider.dispatchEvent(new Event("input"));
    while (!performance.getEntriesByName("grid").length) await new Promise((go) => setTimeout(go, 5));
    const [grid] = performance.getEntriesByName("grid");
    times.push([grid.duration, grid.detail]);
  }
  return times;
}"""
PIXELS = """() => {
  const canvas = document.querySelector(".stage .pictures figure:last-child canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [...data].filter((_, i) => i % 4 === 0);
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="folder of a run; default: a short training on sprites")
    parser.add_argument("--steps", type=int, default=20, help="of the short training")
    parser.add_argument("--weights", default="auto")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = ub.load(given.run, device="cpu") if given.run else train(Path(folder), given.steps)
        weights = int(given.weights) if given.weights.isdigit() else given.weights
        page = run.explore(Path(folder) / "explore.html", weights=weights, open=False)
        size = page.path.stat().st_size / 1e6
        print(f"page                         {size:.3f} MB (limit 1.2 for sprites, 0.3 for the demo)")
        measure(run, page.path)


def train(folder: Path, steps: int) -> ub.Run:
    """Return a run of the sprites' size."""
    settings: dict[str, Any] = {"beta": 6, "network": "conv-daunhawer", "z": 10, "batch": 64, "steps": steps}
    return ub.train("beta-tcvae", data="sprites", root=folder, name="sprites", device="cpu", **settings)


def measure(run: ub.Run, path: Path) -> None:
    """Open a page and print what it takes."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_context(offline=True).new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        opened = page.evaluate("performance.now()")
        kind = page.evaluate("document.documentElement.dataset.ready")
        print(f"opened from disk, offline    {opened:.0f} ms, by {kind}")
        page.evaluate(SLIDE, 30)  # browsers compile what is used often
        times = page.evaluate(SLIDE, EVENTS)
        middle, ninety = statistics.median(times), statistics.quantiles(times, n=10)[-1]
        print(f"slider event to picture      median {middle:.2f} ms, 90% below {ninety:.2f} ms (limit 16)")
        more = page.get_by_role("button", name="Show all")
        if more.is_visible():
            more.click()
        grids = page.evaluate(GRID, GRIDS)
        middle, best = statistics.median(time for time, _ in grids), min(time for time, _ in grids)
        tiles = grids[0][1]
        print(f"traversal grid               median {middle:.0f} ms for {tiles} pictures, best {best:.0f} (limit 150)")
        print(f"from PyTorch's pictures      {deviation(run, page):.2f} grey levels at most, of whole ones on a canvas")
        browser.close()


def deviation(run: ub.Run, page: Any) -> float:
    """Return the largest difference of a drawn pixel from PyTorch's, over codes of a few rows."""
    found = 0.0
    for code in run.evaluation.subsample(8).means:
        page.evaluate("(code) => { location.hash = '#code=' + code.join(','); }", code.tolist())
        page.wait_for_timeout(150)
        expected = run.decode(code[None])[0].mean(0).flatten().mul(255).clamp(0, 255).numpy()
        found = max(found, float(np.abs(np.array(page.evaluate(PIXELS), float) - expected).max()))
    return found


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
