"""What each score asks, in two sentences; `unbraid evaluate --explain` prints them."""

from unbraid.metrics.score import metric

QUESTIONS = {
    "attributes": "Is a factor anywhere in the code? "
    "The score is the accuracy of small networks that read each factor from the latents, however they are arranged.",
    "betavae": "Can a linear classifier tell which factor two images share from the differences of their codes? "
    "The score is its accuracy, and 1 does not mean that one latent holds one factor.",
    "clusters": "Does a discrete latent sort the images by a factor? "
    "The score is its accuracy after classes and values are matched.",
    "coherence": "Does a modality that is generated from others show the factor that they share? "
    "The score is the share of generated rows for which a classifier says so.",
    "cond": "Does a second stage still follow the code of the first? "
    "The score is the share of that code's information that survives in the generated image.",
    "cross": "Are images of one modality that are made from another as good and as varied as real ones? "
    "The scores are their distance from real images, 0 at best, and their variety, 1 if it is that of the data.",
    "dci": "Which latents does a predictor of each factor use? "
    "Disentanglement asks whether a latent serves one factor, completeness whether a factor needs one latent, and "
    "informativeness how well the factors are predicted.",
    "density": "How probable are the data under the model? "
    "The score is the mean log density of an observation in nats, and more is better.",
    "dimension-kl": "How far is each latent, over all images, from the prior? "
    "The score is the sum of these divergences in nats.",
    "diversity": "Do images that are generated from one condition differ in everything that the condition leaves open? "
    "The score is the entropy of what a classifier sees in them.",
    "downstream": "How well does a classifier learn the factors from few and from many labelled codes? "
    "The scores are test accuracies, and efficiency is the first over the last.",
    "elbo": "How well does the model explain the data? "
    "The score is the lower bound of the log likelihood of an image in nats, and says nothing about single latents.",
    "explicitness": "Can a linear classifier read each value of each factor from the whole code? "
    "The score is the area under its ROC curve, and a rotation of the code does not change it.",
    "factorvae": "Does the same latent always vary least when a factor is held fixed? "
    "The score is the accuracy of a majority vote from that latent to the factor.",
    "frechet": "How far are generated images from real ones in the features of a network? "
    "The score is the distance of two Gaussians, 0 for equal sets, and it falls with the number of rows.",
    "generated": "Does each class of a discrete latent generate images of one kind? "
    "The score is the share of the most frequent kind, by a classifier.",
    "infomec": "Does each latent hold one factor, has each factor one latent, and can a linear predictor read it? "
    "The three scores are shares of normalised information, and the first two ignore how much information there is.",
    "irs": "If a latent's own factor is fixed, can other factors still move it? "
    "The score is 1 if they cannot, and latents without any information do not get 0.",
    "kept": "Does an image keep its value of a factor while one latent moves? "
    "The score is the share of images for which a classifier sees no change.",
    "kid": "How far are generated images from real ones in the features of a network? "
    "The score is an unbiased kernel distance, so it may be compared between different numbers of rows.",
    "kl": "How much does the code of an image differ from the prior? "
    "The score is the mean divergence in nats, the rate at which the model stores images.",
    "kl-blocks": "How much does each block of latents carry? "
    "The score is the divergence of its posterior from the prior in nats, and 0 means that it is unused.",
    "latent-mi": "How much does one latent tell about which image it is? "
    "The score is their mutual information in nats, whatever that information is about.",
    "log-likelihood": "How probable are the modalities of a row, together, alone or given each other? "
    "The score is a mean log likelihood in nats by importance sampling, which lies below the truth with few draws.",
    "mi": "How much does the whole code tell about which image it is? "
    "The score is their mutual information in nats, at most the logarithm of the number of rows.",
    "mig": "Is each factor known to one latent, and only one? "
    "The score is the gap in information between the best and the second best latent, over the factor's entropy.",
    "mig-of": "Is each factor known to one latent of a part of the model, and only one? "
    "The score is the mutual information gap of that part's codes.",
    "modularity": "Does each latent know at most one factor? "
    "The score compares a latent's largest information with the rest, whatever its size, so noise does not get 0.",
    "precision-recall": "Are generated images realistic, and do they cover the real ones? "
    "The scores are the shares of generated images near real ones, and of real ones near generated ones.",
    "probe": "Which block of latents holds a factor? "
    "The scores are the accuracy of a linear classifier, and the information of the block's best latent in nats.",
    "reconstruction": "How much of an image is lost between encoder and decoder? "
    "The score is the error of the reconstruction, in nats or per pixel, and less is better.",
    "sap": "Is each factor predicted by one latent only? "
    "The score is the gap in accuracy between the best and the second best latent, each with a linear classifier.",
    "strokes": "Do reconstructions, or a latent, follow the thickness or width of strokes? "
    "The scores are the share of reconstructions within the range of the originals, and a rank correlation.",
    "tc": "Are the latents independent of each other? "
    "The score is their total correlation in nats, 0 if and only if they are; tc/ratio, by a network, may be too low "
    "by .1 nats and a sixth (more if it is large), and is left out if the rows are too few to train it.",
    "tc-blocks": "Are the shared and the private latents independent of each other? "
    "The score is their mutual information in nats, 0 if they are or if one of them carries nothing; "
    "it is left out if the rows are too few to train its network.",
    "udr": "Do models that were trained separately find the same latents? "
    "The score is their agreement and needs no labels, but models may also agree in their faults.",
    "units": "How many latents does the model use? The score counts those whose mean varies over the images.",
    "unseen": "Does a stage find the factors that it was given no labels of? "
    "The score is the largest correlation of its own latents with each of them.",
}
"""Two sentences for each metric, by the name before its protocol."""


def explain(name: str) -> str:
    """Return what a metric asks, or its one-line summary if it is not part of this package."""
    family = name.partition("/")[0]
    known = next((entry for entry in metric if entry == name or entry.startswith(f"{family}/")), None)
    return QUESTIONS.get(family) or (metric[known].summary if known is not None else "")
