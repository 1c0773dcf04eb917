"""The hybrid of Hensman et al. (2015) in one call: Gaussian fit, then chains."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax import random

from svgp_ppl.checks import require_arguments, require_key
from svgp_ppl.fitting.fit import Fit, fit
from svgp_ppl.guides import AutoGaussian
from svgp_ppl.mcmc.chain_method import ChainMethod
from svgp_ppl.mcmc.sample import sample
from svgp_ppl.mcmc.sampler import Sampler
from svgp_ppl.prediction.predict import Prediction, predict

__all__ = ["Hybrid", "fit_and_sample"]


class Hybrid(NamedTuple):
    """What :func:`fit_and_sample` returns.

    Attributes:
        model: The model.
        fit: The Gaussian approximation.
        draws: The free-form posterior, an ArviZ object.
    """

    model: Callable
    fit: Fit
    draws: Any

    def predict(self, *args, key=None, **kwargs) -> dict[str, Prediction]:
        """Predictions of the draws at other arguments of the model."""
        return predict(self.model, self.draws, *args, key=key, **kwargs)


def fit_and_sample(
    key,
    model: Callable,
    *args,
    guide: Callable | None = None,
    fit_options: Mapping[str, Any] | None = None,
    sampler: Sampler | None = None,
    num_chains: int = 4,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    chain_method: ChainMethod | None = None,
    log_likelihood: bool = False,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    progress: bool = True,
    **kwargs,
) -> Hybrid:
    """Fit the q(v), then everything, freeze z, and sample what is left.

    The steps of Hensman, Matthews, Filippone & Ghahramani (2015, section 4), with z
    where the model has it at first (``gp.inducing.kmeans``):

        fit(model, guide, ..., variational_first=a fifth of the steps)
        sample(model, ..., init=the fit, sampler=sampler)

    Args:
        key: Random key.
        model: NumPyro model; ``param`` sites, z above all, are fitted and then frozen.
        *args: Arguments of the model, data included.
        guide: ``AutoGaussian(model)`` if None.
        fit_options: Arguments of ``gp.fit`` beyond those here, such as ``optimizer``,
            ``num_steps`` or ``variational_first``.
        sampler: ``svgp_ppl.mcmc.NUTS()`` if None.
        num_chains: Number of chains.
        num_warmup: Steps of adaptation a chain.
        num_samples: Draws kept a chain.
        chain_method: As for ``gp.sample``.
        log_likelihood: Whether to add the log likelihood of every draw, for LOO.
        coords: Labels by dimension, as for ``gp.sample``.
        dims: Names of dimensions by variable, as for ``gp.sample``.
        progress: Whether to show progress bars.
        **kwargs: Keyword arguments of the model.

    Returns:
        The fit and the draws; ``.predict(x_new)`` predicts from the draws.

    Raises:
        ValueError: What ``gp.fit`` or ``gp.sample`` refuse.
        NonFiniteBoundError: The bound is NaN or infinite.
        FloatingPointError: The log density is not finite where the chains start.

    Example:
        >>> import svgp_ppl as gp
        >>> hybrid = gp.fit_and_sample(
        ...     random.key(0), model, x, y
        ... )  # doctest: +SKIP
    """
    require_key(key)
    require_arguments(model, args, kwargs)
    key_fit, key_sample = random.split(key)
    options = {"num_steps": 2000, **(fit_options or {})}
    options.setdefault("variational_first", options["num_steps"] // 5)
    guide = AutoGaussian(model) if guide is None else guide
    fitted = fit(key_fit, model, guide, *args, progress=progress, **options, **kwargs)
    draws = sample(
        key_sample,
        model,
        *args,
        sampler=sampler,
        num_chains=num_chains,
        num_warmup=num_warmup,
        num_samples=num_samples,
        chain_method=chain_method,
        init=fitted,
        log_likelihood=log_likelihood,
        coords=coords,
        dims=dims,
        progress=progress,
        **kwargs,
    )
    return Hybrid(model, fitted, draws)
