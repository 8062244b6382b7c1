"""How well factors can be predicted from codes, and by which of them."""
