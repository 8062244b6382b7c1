"""Pictures of a model, and self-contained pages about runs and sweeps."""

from unbraid.report.multimodal_pictures import translation
from unbraid.report.pictures import Picture
from unbraid.report.run_card import EXPLORER, run_card
from unbraid.report.run_page import write_report
from unbraid.report.stage_pictures import triples
from unbraid.report.traversals import Traversal, traversal, traverse

__all__ = [
    "EXPLORER",
    "Picture",
    "Traversal",
    "run_card",
    "translation",
    "traversal",
    "traverse",
    "triples",
    "write_report",
]
