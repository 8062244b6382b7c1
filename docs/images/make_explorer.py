"""Draw docs/images/explorer.gif: the demo's explorer in a Chromium while its sliders move.

python docs/images/make_explorer.py
"""

import io
import math
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import unbraid as ub

FRAMES, MILLISECONDS = 36, 90
SIZE = {"width": 1120, "height": 585}
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
MOVE = """([place, share]) => {
  const slider = document.querySelectorAll(".slider input")[place];
  slider.value = Number(slider.min) + share * (slider.max - slider.min);
  slider.dispatchEvent(new Event("input"));
}"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = ub.load("demo").explore(Path(folder) / "demo.html", open=False).path
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.locator("footer").evaluate("(footer) => footer.remove()")
        frames = []
        for frame in range(FRAMES):
            turn = 2 * math.pi * frame / FRAMES
            for place, share in enumerate(
                (0.5 + 0.4 * math.cos(turn), 0.5 + 0.4 * math.sin(turn), 0.5 + 0.35 * math.sin(2 * turn))
            ):
                page.evaluate(MOVE, [place, share])
            page.wait_for_timeout(250)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            frames.append(picture.resize((picture.width * 3 // 4, picture.height * 3 // 4), Image.Resampling.LANCZOS))
        browser.close()
    palette = frames[FRAMES // 3].quantize(160, Image.Quantize.MAXCOVERAGE)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    target = Path(__file__).parent / "explorer.gif"
    frames[0].save(target, save_all=True, append_images=frames[1:], duration=MILLISECONDS, loop=0, optimize=True)
    print(f"{target}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
