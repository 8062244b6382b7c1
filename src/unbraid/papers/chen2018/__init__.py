"""chen2018: Isolating Sources of Disentanglement in Variational Autoencoders (beta-TCVAE and MIG)."""
