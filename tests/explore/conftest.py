"""Pages of small runs, and a real Chromium that shows them."""

import shutil
from pathlib import Path

import pytest
import torch

import unbraid as ub
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.explore import write_run_page

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ATTACK = "document.body.dataset.hacked=1"
HOSTILE = f"""\"><img src=x onerror="{ATTACK}"><script>{ATTACK}</script>'&{{{{DATA}}}}"""
QUICK = {"encoder_hidden": (8,), "decoder_hidden": (8,), "network": "mlp", "steps": 3, "batch": 8, "device": "cpu"}


@pytest.fixture(scope="session")
def demo_page(tmp_path_factory) -> Path:
    """The page of the demo's packaged run."""
    return ub.load("demo", device="cpu").explore(tmp_path_factory.mktemp("demo") / "demo.html", open=False).path


@pytest.fixture(scope="session")
def hostile_page(tmp_path_factory) -> Path:
    """A page of a run whose names try to become markup."""
    folder = tmp_path_factory.mktemp("hostile")
    images = torch.randint(0, 255, (24, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    factors = (Factor(HOSTILE, 2, ("disc", HOSTILE)), Factor("</script>", 12))
    data = FactorDataset(HOSTILE, Pixels(images, (1, 8, 8)), factors)
    run = ub.train("vae", data=data, z=3, root=folder, **QUICK)
    return write_run_page(folder / "page.html", run.as_explored())


@pytest.fixture(scope="session")
def modalities_run(tmp_path_factory) -> ub.Run:
    """A run of images in two modalities and a label, with shared and private latents."""
    folder = tmp_path_factory.mktemp("modalities")
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(32, 1, 8, 8, generator=generator).numpy() for _ in range(2))
    data = ub.data.from_arrays({"left": left, "right": right, "word": ["one", "two"] * 16})
    quick = {key: value for key, value in QUICK.items() if "hidden" not in key}
    return ub.train("partitioned-mvae", data=data, root=folder, **quick)


@pytest.fixture(scope="session")
def modalities_page(modalities_run) -> Path:
    return modalities_run.explore(open=False).path


@pytest.fixture(scope="session")
def refined_run(tmp_path_factory) -> ub.Run:
    """A run of two stages, whose code has the blocks c and z."""
    root = tmp_path_factory.mktemp("refined")
    first = ub.train("vae", data="sprites-small", data_positions=4, z=3, root=root, name="first", **QUICK)
    quick = {key: QUICK[key] for key in ("steps", "batch", "device")}
    return ub.refine(first, z=2, decoder="mlp", root=root, name="second", **quick)


@pytest.fixture(scope="session")
def sweep_page(tmp_path_factory) -> Path:
    """A page of four runs."""
    folder = tmp_path_factory.mktemp("sweep")
    sweep = ub.sweep(
        "beta-vae", data="sprites-small", data_positions=[4], beta=[1, 4], seed=range(2), z=[3], root=folder,
        report=False, metrics=["mig/histogram-mean", "elbo"],
        **{**QUICK, "encoder_hidden": [(8,)], "decoder_hidden": [(8,)]},
    )  # fmt: skip
    return sweep.explore(open=False).path


@pytest.fixture(scope="session")
def chromium():
    """A browser for all tests; skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("needs a Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Open a page without a network; at the end nothing may have been said on the console or asked of a server."""
    contexts, said = [], []

    def opened(path: Path, fragment: str = "", **options):
        context = chromium.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or said.append(request.url)
        )
        page.goto(path.as_uri() + fragment)
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
