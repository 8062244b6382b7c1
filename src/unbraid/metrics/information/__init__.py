"""Information that latents and factors have about each other."""
