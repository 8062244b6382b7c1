"""How good decoded images are."""
