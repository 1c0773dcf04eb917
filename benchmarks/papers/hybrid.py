"""A Gaussian fit, and chains from it, by the settings of an experiment."""

import optax
from jax import random

import svgp_ppl as gp


def fit_then_sample(key, model, x, y, settings, sampler, coordinates=None) -> gp.Hybrid:
    """``gp.fit_and_sample``, with a choice of what the sampler moves.

    ``settings``: "steps" of Adam, "chains", "warmup", "draws".
    """
    key_fit, key_sample = random.split(key)
    fit = gp.fit(
        key_fit,
        model,
        gp.AutoGaussian(model),
        x,
        y,
        optimizer=optax.adam(0.02),
        num_steps=settings["steps"],
        variational_first=settings["steps"] // 5,
        progress=False,
    )
    draws = chains_from(fit, key_sample, model, x, y, settings, sampler, coordinates)
    return gp.Hybrid(model, fit, draws)


def chains_from(fit, key, model, x, y, settings, sampler, coordinates=None):
    """``gp.sample`` from a fit, with "chains", "warmup" and "draws" of the settings.

    "checkpoint", if it is there, is where the chains are kept.
    """
    return gp.sample(
        key,
        model,
        x,
        y,
        init=fit,
        sampler=sampler,
        coordinates=coordinates,
        num_chains=settings["chains"],
        num_warmup=settings["warmup"],
        num_samples=settings["draws"],
        checkpoint=settings.get("checkpoint"),
        progress=False,
    )
