"""The settings of a recipe are its objective's and its model's, with the recipe's own defaults."""

import pytest

from unbraid.methods import objective
from unbraid.objectives import bind


@pytest.mark.parametrize(
    ("recipe", "average"),
    [("ada-gvae", "mean"), ("ada-ml-vae", "geometric"), ("gvae", "mean"), ("ml-vae", "product")],
)
def test_recipes_of_one_model_have_their_own_defaults(recipe, average):
    assert objective[recipe].resolve({})["average"] == average
    assert objective[recipe].resolve({"average": "product"})["average"] == "product"


def test_a_setting_that_a_recipe_fixes_is_not_offered():
    assert "shared" not in objective["ada-gvae"].settings
    assert objective["gvae"].resolve({})["shared"] == 5
    assert "samples" not in objective["ms-labels"].settings
    assert "samples" in objective["ms-vae"].settings


def test_an_objective_gets_what_it_reads_and_only_that():
    settings = objective["mvae"].resolve({"unimodal": False, "subsets": 3, "prior_expert": False, "beta_c": 2.0})
    assert list(settings)[:5] == ["beta_c", "beta_m", "betas", "weights", "anneal"]
    bound = bind("mvae", settings)
    assert (bound.unimodal, bound.beta_c) == (False, 2.0)


def test_settings_of_a_model_are_structure():
    assert objective["info-gan"].sweepable == {"lambda_info", "instance_noise"}
