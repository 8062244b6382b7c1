from unbraid import (
    data as data,
    density as density,
    latents as latents,
    methods as methods,
    metrics as metrics,
    networks as networks,
    objectives as objectives,
    report as report,
    sklearn as sklearn,
)
from unbraid._version import __version__ as __version__
from unbraid.api import refine as refine, train as train
from unbraid.data import Factor as Factor, FactorDataset as FactorDataset, dataset as dataset
from unbraid.errors import UnbraidError as UnbraidError
from unbraid.methods import objective as objective, preset as preset
from unbraid.metrics import Score as Score, metric as metric
from unbraid.networks import decoder as decoder, encoder as encoder, refiner as refiner
from unbraid.open_run import export as export, load as load, pull as pull
from unbraid.papers import reproduce as reproduce
from unbraid.run import Run as Run
from unbraid.sweeps import Sweep as Sweep, sweep as sweep
from unbraid.types import Terms as Terms, Weight as Weight
