"""Traversals as animations."""

import pytest
from PIL import Image

import unbraid as ub


@pytest.mark.parametrize("ending", ["gif", "apng"])
def test_a_traversal_is_saved_as_an_animation(ending, tmp_path):
    path = tmp_path / f"traversal.{ending}"
    ub.load("demo", device="cpu").traverse(columns=5).save(path)
    with Image.open(path) as animation:
        assert animation.n_frames == 8  # there and back
