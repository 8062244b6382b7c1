"""Training: from a config and a data set to a run folder."""

from unbraid.training.configure import check_settings as check_settings, configure as configure
from unbraid.training.environment import choose_device as choose_device
from unbraid.training.interrupt import Interrupted as Interrupted
from unbraid.training.loop import Cadence as Cadence, GroupFolders as GroupFolders, train_group as train_group
