"""msvae2020: Improving the Reconstruction of Disentangled Representation Learners via Multi-Stage Modelling."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
