"""Pictures of a model, and one self-contained page about a run."""

from unbraid.report.modalities import translation
from unbraid.report.page import write_report
from unbraid.report.pictures import Picture
from unbraid.report.stages import triples
from unbraid.report.traversals import Traversal, traversal, traverse

__all__ = ["Picture", "Traversal", "translation", "traversal", "traverse", "triples", "write_report"]
