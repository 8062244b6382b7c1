"""split2020: An Information Theoretic Perspective on Disentangled Representation Learning (the split encoder)."""

from unbraid.papers.split2020 import figures as figures, lemmas as lemmas
