"""Full references of the short names that registered entries cite."""

REFERENCES = {
    "achille2018": "Achille and Soatto, Information dropout: learning optimal representations through noisy "
    "computation",
    "binkowski2018": "Bińkowski et al., Demystifying MMD GANs",
    "bouchacourt2018": "Bouchacourt et al., Multi-level variational autoencoder",
    "burda2016": "Burda et al., Importance weighted autoencoders",
    "burgess2018": "Burgess et al., Understanding disentangling in beta-VAE",
    "chen2016": "Chen et al., InfoGAN: interpretable representation learning by information maximizing GANs",
    "chen2018": "Chen et al., Isolating sources of disentanglement in variational autoencoders",
    "daunhawer2019": "Daunhawer et al., Improving multimodal generative models with disentangled latent partitions",
    "dinh2016": "Dinh et al., Density estimation using Real NVP",
    "duan2020": "Duan et al., Unsupervised model selection for variational disentangled representation learning",
    "eastwood2018": "Eastwood and Williams, A framework for the quantitative evaluation of disentangled "
    "representations",
    "esmaeili2018": "Esmaeili et al., Structured disentangled representations",
    "gao2018": "Gao et al., Auto-encoding total correlation explanation",
    "heusel2017": "Heusel et al., GANs trained by a two time-scale update rule converge to a local Nash equilibrium",
    "higgins2017": "Higgins et al., beta-VAE: learning basic visual concepts with a constrained variational framework",
    "hosoya2019": "Hosoya, Group-based learning of disentangled representations with generalizability for novel "
    "contents",
    "hsu2023": "Hsu et al., Disentanglement via latent quantization",
    "kim2018": "Kim and Mnih, Disentangling by factorising",
    "kingma2014": "Kingma and Welling, Auto-encoding variational Bayes",
    "kumar2018": "Kumar et al., Variational inference of disentangled latent concepts from unlabeled observations",
    "kynkaanniemi2019": "Kynkäänniemi et al., Improved precision and recall metric for assessing generative models",
    "lee2021": "Lee and Pavlovic, Private-shared disentangled multimodal VAE for learning of latent representations",
    "lezama2019": "Lezama, Overcoming the disentanglement vs reconstruction trade-off via Jacobian supervision",
    "locatello2019": "Locatello et al., Challenging common assumptions in the unsupervised learning of disentangled "
    "representations",
    "locatello2020": "Locatello et al., Weakly-supervised disentanglement without compromises",
    "locatello2020b": "Locatello et al., Disentangling factors of variation using few labels",
    "manning2008": "Manning et al., Introduction to information retrieval",
    "miller1955": "Miller, Note on the bias of information estimates",
    "mirza2014": "Mirza and Osindero, Conditional generative adversarial nets",
    "msvae2020": "Improving the reconstruction of disentangled representation learners via multi-stage modelling",
    "perez2018": "Perez et al., FiLM: visual reasoning with a general conditioning layer",
    "radford2016": "Radford et al., Unsupervised representation learning with deep convolutional generative "
    "adversarial networks",
    "ridgeway2018": "Ridgeway and Mozer, Learning deep disentangled embeddings with the F-statistic loss",
    "shi2019": "Shi et al., Variational mixture-of-experts autoencoders for multi-modal deep generative models",
    "split2020": "An information theoretic perspective on disentangled representation learning",
    "suter2019": "Suter et al., Robustly disentangled causal mechanisms: validating deep representations for "
    "interventional robustness",
    "sutter2021": "Sutter et al., Generalized multimodal ELBO",
    "watters2019": "Watters et al., Spatial broadcast decoder: a simple architecture for learning disentangled "
    "representations in VAEs",
    "wu2018": "Wu and Goodman, Multimodal generative models for scalable weakly-supervised learning",
    "xie2016": "Xie et al., Unsupervised deep embedding for clustering analysis",
    "zhao2017": "Zhao et al., InfoVAE: information maximizing variational autoencoders",
    "zhao2019": "Zhao et al., InfoVAE: balancing learning and inference in variational autoencoders",
}


def spell_out(reference: str) -> str:
    """Return a reference in full, each of its short names followed by authors and title."""
    parts = [part.strip() for part in reference.split(",") if part.strip()]
    return "; ".join(f"{part}: {REFERENCES[part]}" if part in REFERENCES else part for part in parts)
