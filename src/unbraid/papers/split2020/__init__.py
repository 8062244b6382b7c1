"""split2020: An Information Theoretic Perspective on Disentangled Representation Learning (the split encoder)."""
