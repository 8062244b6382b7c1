"""One group of a sweep: trained, scored, and taken off the list."""

import functools
import gc

from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.errors import RunError
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.messages import say
from unbraid.sweeps.scoring import refuse_if_stopped, score
from unbraid.sweeps.sources import Sources
from unbraid.training import Cadence, choose_device, train_group
from unbraid.training.interrupt import Stop
from unbraid.training.memory import free_memory, is_out_of_memory


@functools.lru_cache(maxsize=1)
def _sources_of_worker(device: str) -> Sources:
    """A worker's data sets: it may do several groups of one sweep."""
    return Sources(choose_device(device))


def work(
    folder: str, group: str, device: str = "auto", sources: Sources | None = None, stop: Stop | None = None
) -> list[str]:
    """Train and score one group of a sweep, resuming where it stands; returns notes for the user.

    `stop` ends it between two scores; while it trains, the training itself hears of signals.
    """
    stop = stop or Stop()
    refuse_if_stopped(stop)
    led = SweepFolder(folder)
    if group not in led.groups():
        return []  # an earlier try did it and died before it could say so
    if led.busy(group):
        raise RunError(led.busy_in_words(group))
    if led.parts_of(group):
        return _work_on_parts(led, group, device, sources, stop)
    runs, cadence = led.runs_of(group), led.cadence_of(group)
    folders = [led.run(run) for run in runs]
    configs = [each.config for each in folders]
    dataset = (sources or _sources_of_worker(device)).of(configs[0].data)
    trained = all(map(led.ended, runs)) or _train(led.group(group), folders, configs, dataset, cadence)
    if not trained:
        return [_halve(led, group), *_work_on_parts(led, group, device, sources, stop)]
    with led.group(group).locked():  # training has its own lock, which has ended
        notes = score([each for each in folders if each.finished], dataset, led.statement.metrics, stop)
    led.remove_group(group)
    return notes


def _train(
    group: RunFolder, folders: list[RunFolder], configs: list[Config], dataset: FactorDataset, cadence: Cadence
) -> bool:
    """Train a group; false where it does not fit in memory."""
    try:
        train_group(group, folders, configs, dataset, cadence)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        gc.collect()  # the state hangs in reference cycles, and the next group needs its memory
    return True


def _halve(led: SweepFolder, group: str) -> str:
    """Divide a group that is too large for the memory; returns a note about it."""
    free_memory()
    runs = led.runs_of(group)
    if len(runs) == 1:
        raise RunError(f"{runs[0]} alone does not fit in the memory of the device; try a smaller batch.")
    half = (len(runs) + 1) // 2
    led.divide(group, [runs[:half], runs[half:]])
    told = f"{len(runs)} members did not fit in memory; they are trained as {half} and {len(runs) - half}, from step 0."
    say(told)
    return told


def _work_on_parts(led: SweepFolder, group: str, device: str, sources: Sources | None, stop: Stop) -> list[str]:
    notes = [note for part in led.parts_of(group) for note in work(str(led.path), part, device, sources, stop)]
    led.remove_group(group)
    return notes
