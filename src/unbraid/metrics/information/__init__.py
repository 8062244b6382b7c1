"""How much latents and factors tell of each other."""
