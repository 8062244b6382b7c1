"""Tables and figures of five papers as experiments; importing this package registers them.

One package per paper, one decorated function per table or figure. `reproduce("chen2018/fig2", scale="small")` trains
its runs, tests its claims and writes its table, figure and verdicts.
"""

from unbraid.experiments import reproduce as reproduce
from unbraid.papers import (
    chen2018 as chen2018,
    daunhawer2019 as daunhawer2019,
    esmaeili2018 as esmaeili2018,
    msvae2020 as msvae2020,
    split2020 as split2020,
)
