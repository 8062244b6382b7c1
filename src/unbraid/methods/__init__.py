"""Methods, one file each: formula, citation, settings, objective and, where it needs one of its own, model.

Importing this package imports every file in it, so that a new method registers itself.
"""

import importlib
import pkgutil

from unbraid.methods.presets import preset as preset
from unbraid.objectives import objective as objective

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
