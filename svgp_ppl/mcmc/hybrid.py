"""The hybrid of Hensman et al. (2015) in one call: Gaussian fit, then chains."""

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax import random

from svgp_ppl.checks import require_arguments, require_key
from svgp_ppl.fitting.fit import Fit, fit
from svgp_ppl.guides.start import default_guide
from svgp_ppl.mcmc.chains.chain_method import ChainMethod
from svgp_ppl.mcmc.sample import sample
from svgp_ppl.mcmc.samplers.sampler import Sampler
from svgp_ppl.prediction.predict import Prediction, predict

__all__ = ["Hybrid", "fit_and_sample"]


class Hybrid(NamedTuple):
    """What :func:`fit_and_sample` returns.

    Attributes:
        model: The model.
        fit: The Gaussian approximation.
        draws: The free-form posterior, an ArviZ object; None after an interrupt
            of the fit.

    Example:
        >>> hybrid = gp.Hybrid(model, fitted, draws)  # what fit_and_sample returns
        >>> hybrid.predict(x_new)["y"].mean.shape
        (2,)
    """

    model: Callable
    fit: Fit
    draws: Any

    def predict(self, *args, key=None, **kwargs) -> dict[str, Prediction]:
        """Predictions of the draws (or the fit) at other arguments of the model."""
        posterior = self.fit if self.draws is None else self.draws
        return predict(self.model, posterior, *args, key=key, **kwargs)


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
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
    **kwargs,
) -> Hybrid:
    """Fit the q(v), then everything, freeze z, and sample the rest.

    The steps of Hensman, Matthews, Filippone & Ghahramani (2015, section 4), with the
    initial z of the model (``gp.inducing.kmeans``):

        fit(model, guide, ..., variational_first=a fifth of the steps)
        sample(model, ..., init=the fit, sampler=sampler)

    Args:
        key: Random key.
        model: NumPyro model; ``param`` sites, above all z, are fitted and then frozen.
        *args: Arguments of the model, data included.
        guide: ``AutoGaussian(model)`` if None.
        fit_options: Arguments of ``gp.fit`` beyond those here, such as ``optimizer``,
            ``num_steps`` or ``variational_first``.
        sampler: ``svgp_ppl.mcmc.NUTS()`` if None.
        num_chains: Number of chains.
        num_warmup: Steps of adaptation per chain.
        num_samples: Draws kept per chain.
        chain_method: As for ``gp.sample``.
        log_likelihood: Whether to add the log likelihood of every draw, for LOO.
        coords: Labels by dimension, as for ``gp.sample``.
        dims: Names of dimensions by variable, as for ``gp.sample``.
        checkpoint: Start of the names of two files, ``<checkpoint>.fit`` and
            ``<checkpoint>.chains``, written about every half minute. If they exist, the
            same call continues from them.
        progress: Whether to show progress bars.
        **kwargs: Keyword arguments of the model.

    Returns:
        The fit and the draws; ``.predict(x_new)`` predicts from the draws. After a
        keyboard interrupt what there is (with a warning); no chains start from an
        interrupted fit.

    Raises:
        ValueError: ``gp.fit`` or ``gp.sample`` refuse an argument.
        NonFiniteBoundError: The bound is NaN or infinite.
        FloatingPointError: The log density is not finite where the chains start.

    Example:
        >>> import svgp_ppl as gp
        >>> options = {"num_warmup": 200, "num_samples": 100, "progress": False}
        >>> hybrid = gp.fit_and_sample(random.key(0), model, x, y, **options)
        >>> hybrid.predict(x_new)["y"].mean.shape
        (2,)
    """
    require_key(key)
    require_arguments(model, args, kwargs, fit_and_sample)
    key_fit, key_sample = random.split(key)
    options = {"num_steps": 2000, **(fit_options or {})}
    options.setdefault("variational_first", options["num_steps"] // 5)
    guide = default_guide(model) if guide is None else guide
    of_chains = None
    if checkpoint is not None:
        options["checkpoint"] = f"{os.fspath(checkpoint)}.fit"
        of_chains = f"{os.fspath(checkpoint)}.chains"
    options["progress"] = progress
    fitted = fit(key_fit, model, guide, *args, **options, **kwargs)
    if fitted.interrupted:
        warnings.warn(
            "the fit was interrupted, so no chains were started: draws is None. With "
            "checkpoint= the same call goes on.",
            stacklevel=2,
        )
        return Hybrid(model, fitted, None)
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
        checkpoint=of_chains,
        progress=progress,
        **kwargs,
    )
    return Hybrid(model, fitted, draws)
