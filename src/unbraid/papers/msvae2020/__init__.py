"""msvae2020: Improving the Reconstruction of Disentangled Representation Learners via Multi-Stage Modelling."""
