"""Training: from a config and a data set to a run folder."""

from unbraid.training.configure import check_settings, configure
from unbraid.training.environment import choose_device
from unbraid.training.interrupt import Interrupted
from unbraid.training.loop import Cadence, train, train_group

__all__ = ["Cadence", "Interrupted", "check_settings", "choose_device", "configure", "train", "train_group"]
