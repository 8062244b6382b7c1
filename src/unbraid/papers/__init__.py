"""Tables and figures of five papers as experiments; importing this package registers them.

One package per paper, one experiment per table or figure. `reproduce("chen2018/fig2", scale="small")` trains its runs,
tests its claims and writes its table, figure and verdicts.
"""

import importlib
import pkgutil

from unbraid.experiments import reproduce as reproduce

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
