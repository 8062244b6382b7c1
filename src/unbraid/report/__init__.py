"""Pictures of a model, and self-contained pages about runs and sweeps."""

from unbraid.report.multimodal_pictures import translation as translation
from unbraid.report.pictures import Picture as Picture
from unbraid.report.run_page import EXPLORER as EXPLORER, run_card as run_card, write_report as write_report
from unbraid.report.traversals import (
    Traversal as Traversal,
    traversal as traversal,
    traverse as traverse,
    triples as triples,
)
