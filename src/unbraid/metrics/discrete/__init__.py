"""What discrete latents mean."""
