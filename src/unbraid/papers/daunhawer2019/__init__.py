"""daunhawer2019: Improving Multimodal Generative Models with Disentangled Latent Partitions."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
