"""Deep Gaussian processes: layers of processes, each seen at a draw of the one below.

    h_0 = x,   h_l = f_l(h_{l−1}) drawn per datum,   y_n ~ p(y_n | f_L(h_{L−1, n}))

(Salimbeni & Deisenroth 2017, eq. 14 to 18). The bound needs nothing new: an inner
layer is ``sparse_gp(..., num_outputs=)`` whose latent goes through ``propagate``. This
module has the rest: the width of every layer, fixed linear means that keep the inputs
apart on their way up, and inducing inputs carried through those means.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float

from svgp_ppl.checks import checked_inputs, require_count
from svgp_ppl.inducing import kmeans
from svgp_ppl.latent import Latent
from svgp_ppl.linalg import matmul
from svgp_ppl.primitives import propagate, sparse_gp

__all__ = ["Layer", "LinearMean", "compose", "layers", "linear_mean"]

_WIDTH = "the width of a layer"
# Widest inner layer of the paper's experiments.
_WIDEST = 30


class LinearMean(NamedTuple):
    """The mean function m(x) = x W of an inner layer, fixed.

    Attributes:
        weights: W, [D, Q].
    """

    weights: Array

    def __call__(self, x) -> Float[Array, "N Q"]:
        """x W, [N, Q]."""
        x = jnp.asarray(x)
        is_real = jnp.issubdtype(x.dtype, jnp.floating)
        dtype = x.dtype if is_real else self.weights.dtype
        return matmul(x.astype(dtype), self.weights.astype(dtype))


class Layer(NamedTuple):
    """The start of one layer.

    Attributes:
        z: Inducing inputs, [M, D] with D the width of the layer below.
        mean: Mean function, None for zero (as for the last layer).
        width: Number of outputs; None for one output without an axis of its own.
    """

    z: Array
    mean: LinearMean | None
    width: int | None


def linear_mean(x, width: int) -> LinearMean:
    """W [D, Q] of the linear mean from D columns to ``width`` = Q (section 3, end).

    The identity where the widths are equal; the Q leading right singular vectors of x
    where the layer is narrower; the identity padded with zero columns where it is
    wider.

    Args:
        x: Inputs of the layer, [N, D].
        width: Number of its outputs.

    Raises:
        ValueError: x is not a finite [N, D], or ``width`` is not a positive integer.

    Example:
        >>> gp.deep.linear_mean(np.ones((5, 3)), 4)(np.ones((5, 3))).shape
        (5, 4)
    """
    rows = checked_inputs(x, "the inputs of the layer")
    require_count(width, _WIDTH)
    if width >= rows.shape[1]:
        return LinearMean(jnp.eye(rows.shape[1], width, dtype=rows.dtype))
    right = np.linalg.svd(np.asarray(rows), full_matrices=False)[2]
    if len(right) < width:
        raise ValueError(
            f"{len(rows)} rows span fewer than {width} directions: use at most "
            f"{len(right)} outputs."
        )
    return LinearMean(jnp.asarray(right[:width].T))


def layers(
    x,
    num_layers: int = 2,
    num_inducing: int = 100,
    *,
    widths: Sequence[int] | None = None,
    num_outputs: int | None = None,
    seed: int = 0,
) -> list[Layer]:
    """The layers of a deep Gaussian process, as the paper starts them.

    The inducing inputs of the first layer are k-means centres of x; those of the others
    are these centres carried through the linear means.

    Args:
        x: Inputs, [N, D]; standardise them first.
        num_layers: Number of layers; one is a single process.
        num_inducing: Number M of inducing inputs of each layer.
        widths: Widths of the inner layers, ``num_layers − 1`` of them; min(D, 30) each
            if None.
        num_outputs: Outputs of the last layer; None for one, without an axis.
        seed: Seed of k-means.

    Returns:
        The layers, the last with zero mean.

    Raises:
        ValueError: x is not a finite [N, D]; ``num_layers`` or a width is not a
            positive integer; the number of widths is not ``num_layers − 1``.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(50, 3))
        >>> [layer.z.shape for layer in gp.deep.layers(x, 2, 10, widths=[2])]
        [(10, 3), (10, 2)]
    """
    rows = checked_inputs(x, "the inputs x")
    require_count(num_layers, "num_layers")
    if widths is None:
        widths = [min(rows.shape[1], _WIDEST)] * (num_layers - 1)
    if len(widths) != num_layers - 1:
        raise ValueError(
            f"{num_layers} layers have {num_layers - 1} inner widths, and widths has "
            f"{len(widths)}: {list(widths)}."
        )
    for width in widths:
        require_count(width, _WIDTH)
    z, made = kmeans(rows, num_inducing, seed=seed), []
    for width in widths:
        mean = linear_mean(rows, width)
        made.append(Layer(z, mean, width))
        rows, z = mean(rows), mean(z)
    return [*made, Layer(z, None, num_outputs)]


def compose(
    name: str,
    layers: Sequence[Layer],
    kernels: Sequence[Any],
    x,
    *,
    jitter: float | None = None,
) -> Latent:
    """The latent of the last layer at x, with draws of all layers below it.

    Adds for layer l = 0, 1, … the process ``{name}_{l}``, its inducing inputs as the
    ``param`` site ``{name}_{l}_z``, and except for the last the draw ``{name}_{l}_h``
    [N, Q]. Use ``sparse_gp`` and ``propagate`` directly for anything else: layers that
    also see x, fixed inducing inputs, other means.

    Args:
        name: Beginning of the names of the sites.
        layers: What :func:`layers` returns.
        kernels: One kernel for each layer.
        x: Inputs, [N, D].
        jitter: As in ``sparse_gp``.

    Returns:
        The latent to observe.

    Raises:
        ValueError: The number of kernels is not that of the layers; see ``sparse_gp``.

    Example:
        >>> import svgp_ppl as gp
        >>> start = gp.deep.layers(x, num_layers=2, num_inducing=10)
        >>> def model(x, y=None):
        ...     kernels = [gp.kernels.RBF(2.0, 2.0), gp.kernels.RBF(2.0, 2.0)]
        ...     f = gp.deep.compose("f", start, kernels, x)
        ...     with numpyro.plate("data", len(x)):
        ...         gp.observe("y", gp.likelihoods.Gaussian(0.1), f, obs=y)
        >>> options = {"num_steps": 50, "progress": False}
        >>> fitted = gp.fit(key, model, gp.AutoDeep(model), x, y, **options)
    """
    if len(kernels) != len(layers) or not layers:
        raise ValueError(
            f"every layer needs a kernel: there are {len(layers)} layers and "
            f"{len(kernels)} kernels."
        )
    h, last = x, len(layers) - 1
    for number, (layer, kernel) in enumerate(zip(layers, kernels)):
        process = sparse_gp(
            f"{name}_{number}",
            kernel,
            numpyro.param(f"{name}_{number}_z", layer.z),
            mean=layer.mean,
            num_outputs=layer.width,
            jitter=jitter,
        )
        latent = process(h)
        if number < last:
            h = propagate(f"{name}_{number}_h", latent)
    return latent
