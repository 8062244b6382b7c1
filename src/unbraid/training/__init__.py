"""Training: from a config and a data set to a run folder."""

from unbraid.training.configure import configure, refuse_unknown
from unbraid.training.environment import choose_device
from unbraid.training.interrupt import Interrupted
from unbraid.training.loop import Cadence, train, train_group

__all__ = ["Cadence", "Interrupted", "choose_device", "configure", "refuse_unknown", "train", "train_group"]
