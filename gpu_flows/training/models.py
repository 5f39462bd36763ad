"""The models that ship with gpu-flows. `size` scales the width: 1 takes milliseconds a step on a CPU."""

from __future__ import annotations

from gpu_flows.training import datasets
from gpu_flows.training.registry import Recipe, register


@register("mlp")
def mlp(size: int, samples: int) -> Recipe:
    """Perceptron that classifies points on interleaved spirals."""
    from torch import nn

    width = 64 * size
    network = nn.Sequential(
        nn.Linear(2, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, datasets.SPIRAL_ARMS),
    )
    points, arms = datasets.spirals(samples)
    return Recipe(network, points, arms, nn.functional.cross_entropy)


@register("cnn")
def cnn(size: int, samples: int) -> Recipe:
    """Convolutional network that reads rendered digits."""
    from torch import nn

    channels = 8 * size
    network = nn.Sequential(
        nn.Conv2d(1, channels, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * (datasets.IMAGE_SIDE // 4) ** 2, 10),
    )
    images, labels = datasets.digits(samples)
    return Recipe(network, images, labels, nn.functional.cross_entropy)


@register("resnet")
def resnet(size: int, samples: int) -> Recipe:
    """Residual network that reads rendered digits."""
    from torch import nn

    from gpu_flows.training import networks

    images, labels = datasets.digits(samples)
    return Recipe(networks.residual_network(8 * size, 10), images, labels, nn.functional.cross_entropy)


@register("transformer")
def transformer(size: int, samples: int) -> Recipe:
    """Causal language model that continues generated sentences, letter by letter."""
    from gpu_flows.training import networks

    network = networks.LanguageModel(len(datasets.ALPHABET), context=datasets.CONTEXT, width=32 * size)
    letters, following = datasets.sentences(samples)
    return Recipe(network, letters, following, networks.next_letter_loss)


@register("lstm")
def lstm(size: int, samples: int) -> Recipe:
    """Recurrent network that forecasts the next value of noisy waves."""
    from torch import nn

    from gpu_flows.training import networks

    past, following = datasets.waves(samples)
    return Recipe(networks.Forecaster(width=32 * size), past, following, nn.functional.mse_loss)


@register("matmul")
def matmul(size: int, samples: int) -> Recipe:
    """Product of two matrices that approximates a hidden matrix."""
    from torch import nn

    vectors, images = datasets.products(samples)
    width = vectors.shape[1]
    network = nn.Sequential(
        nn.Linear(width, 64 * size, bias=False), nn.Linear(64 * size, images.shape[1], bias=False)
    )
    return Recipe(network, vectors, images, nn.functional.mse_loss)


@register("trees")
def trees(size: int, samples: int) -> Recipe:
    """Ensemble of soft decision trees that classifies rows of a table."""
    from torch import nn

    from gpu_flows.training import networks

    rows, classes = datasets.tables(samples)
    network = networks.SoftTrees(rows.shape[1], trees=16 * size, classes=datasets.TABLE_CLASSES)
    return Recipe(network, rows, classes, nn.functional.cross_entropy)
