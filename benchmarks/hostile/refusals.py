"""Arguments that are mistakes: each is to be refused in words."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from cases import (
    DRAWS,
    MODEL,
    QUIET,
    SHORT,
    Case,
    X,
    Y,
    Z,
    fit,
    functions,
    model_of,
    predict,
    sample,
)
from jax import random

import svgp_ppl as gp


def bad_keys() -> Iterator[Case]:
    keys = {
        "0": 0,
        "None": None,
        "np.int64": np.int64(1),
        "a float array": np.zeros(2),
        "a word": "key",
        "a tuple": (0, 1),
        "two keys": random.split(random.key(0)),
    }
    calls = {
        "fit": lambda key: gp.fit(key, MODEL, None, X, Y, **QUIET),
        "sample": lambda key: gp.sample(key, MODEL, X, Y, **SHORT),
        "fit_and_sample": lambda key: gp.fit_and_sample(key, MODEL, X, Y),
        "draw_functions": lambda key: gp.draw_functions(key, MODEL, DRAWS, X),
        "Prediction.sample": lambda key: gp.predict(MODEL, DRAWS, X)["y"].sample(
            key, 2
        ),
        "subset": lambda key: gp.inducing.subset(X, 3, key),
    }
    for name, key in keys.items():
        for call, function in calls.items():
            yield Case("key", f"{call} {name}", partial(function, key))


def bad_counts() -> Iterator[Case]:
    values = {"0": 0, "-1": -1, "2.5": 2.5, "True": True, "'3'": "3", "nan": np.nan}
    at = gp.predict(MODEL, DRAWS, X)["y"]
    hermite = gp.expectations.GaussHermite
    calls: dict[str, Callable] = {
        "num_steps": lambda n: fit(num_steps=n),
        "patience": lambda n: fit(patience=n),
        "batch_size": lambda n: fit(batch_size=n),
        "num_chains": lambda n: sample(num_chains=n),
        "num_samples": lambda n: sample(num_samples=n),
        "num_noise_draws": lambda n: sample(num_noise_draws=n),
        "num_draws": lambda n: gp.draw_functions(
            random.key(0), MODEL, DRAWS, X, num_draws=n
        ),
        "num_features": lambda n: functions(num_features=n),
        "chunk_size of predict": lambda n: predict(chunk_size=n),
        "chunk_size of observe": lambda n: fit(model_of(chunk_size=n)),
        "num_nodes": lambda n: fit(model_of(method=hermite(n))),
        "num_outputs": lambda n: fit(model_of(num_outputs=n)),
        "draws of a prediction": lambda n: at.sample(random.key(0), n),
        "max_num_doublings": lambda n: gp.mcmc.NUTS(max_num_doublings=n),
        "num_rounds": lambda n: gp.mcmc.HMC(num_rounds=n),
        "kmeans": lambda n: gp.inducing.kmeans(X, n),
        "num_classes": lambda n: gp.likelihoods.Softmax(n),
    }
    for call, function in calls.items():
        for name, value in values.items():
            yield Case("count", f"{call}={name}", partial(function, value))
    for name, value in values.items():
        if name != "0":
            run = partial(sample, num_warmup=value)
            yield Case("count", f"num_warmup={name}", run)
            run = partial(fit, variational_first=value)
            yield Case("count", f"variational_first={name}", run)


def bad_objects() -> Iterator[Case]:
    of_fit = {
        "optimizer=1e-2": {"optimizer": 1e-2},
        "optimizer='adam'": {"optimizer": "adam"},
        "optimizer=optax.adam": {"optimizer": optax.adam},
        "loss=MarginalELBO": {"loss": gp.MarginalELBO},
        "loss='elbo'": {"loss": "elbo"},
        "tolerance='a'": {"tolerance": "a"},
        "tolerance=nan": {"tolerance": np.nan},
        "freeze=[...]": {"freeze": ["auto*"]},
        "freeze of nothing": {"freeze": {"nothing": 3}},
        "freeze for 2.5": {"freeze": {"auto*": 2.5}},
        "init='a'": {"init": "a"},
        "checkpoint=3": {"checkpoint": 3},
        "an unknown option": {"num_step": 3},
    }
    for name, options in of_fit.items():
        yield Case("object", f"fit {name}", partial(fit, **options))
    of_sample = {
        "sampler=NUTS": {"sampler": gp.mcmc.NUTS},
        "sampler='nuts'": {"sampler": "nuts"},
        "sampler of NumPyro": {"sampler": numpyro.infer.NUTS(MODEL)},
        "init='a'": {"init": "a"},
        "precondition without init": {"precondition": True},
        "an unknown option": {"chains": 4},
    }
    for name, options in of_sample.items():
        yield Case("object", f"sample {name}", partial(sample, **options))
    guide = gp.AutoGaussian
    yield Case(
        "object",
        "guide=AutoGaussian",
        lambda: gp.fit(random.key(0), MODEL, guide, X, Y, **QUIET),
    )
    yield Case("object", "model=3", lambda: fit(3))
    yield Case("object", "no arguments", lambda: gp.predict(MODEL, DRAWS))
    yield Case(
        "object",
        "sparse_gp(kernel, 'f', z)",
        lambda: gp.sparse_gp(gp.kernels.RBF(1.0, 1.0), "f", Z),
    )
    likelihoods = {
        "a distribution": dist.Poisson(1.0),
        "a class of NumPyro": dist.Poisson,
        "a class": gp.likelihoods.Poisson,
        "a word": "poisson",
        "one of None": lambda f: None,
        "one of arrays": jnp.exp,
    }
    for name, likelihood in likelihoods.items():
        run = partial(fit, model_of(likelihood))
        yield Case("object", f"likelihood: {name}", run)
    samplers: dict[str, Callable] = {
        "target 1.5": lambda: gp.mcmc.NUTS(target_acceptance_rate=1.5),
        "target nan": lambda: gp.mcmc.NUTS(target_acceptance_rate=np.nan),
        "step -1": lambda: gp.mcmc.NUTS(initial_step_size=-1.0),
        "metric": lambda: gp.mcmc.NUTS(metric="full"),
        "bounds 0.1": lambda: gp.mcmc.HMC(0.1),
        "bounds (1, 0.1)": lambda: gp.mcmc.HMC((1.0, 0.1)),
        "Gibbs(3)": lambda: gp.mcmc.Gibbs(3),
        "MCLMC(2.5)": lambda: gp.mcmc.MCLMC(2.5),
        "ChEES(2.0)": lambda: gp.mcmc.ChEES(2.0),
        "SGHMC(-1)": lambda: gp.mcmc.SGHMC(step_size=-1.0),
    }
    for name, run in samplers.items():
        yield Case("object", f"sampler: {name}", run)


def bad_latents() -> Iterator[Case]:
    latents: dict[str, Callable] = {
        "jnp.exp(f(x))": lambda f, x: jnp.exp(f(x)),
        "np.exp(f(x))": lambda f, x: np.exp(f(x)),
        "np.sum": lambda f, x: np.sum(f(x)),
        "jnp.where": lambda f, x: jnp.where(x[:, 0] > 1, f(x), 0.0),
        "f(x) ** 2": lambda f, x: f(x) ** 2,
        "1 / f(x)": lambda f, x: 1 / f(x),
        "f(x) / f(x)": lambda f, x: f(x) / f(x),
        "f(x) * f(x)": lambda f, x: f(x) * f(x),
        "abs(f(x))": lambda f, x: abs(f(x)),
        "f(x) > 0": lambda f, x: f(x) > 0,
        "float(f(x))": lambda f, x: float(f(x)),
        "f(x) + 'a'": lambda f, x: f(x) + "a",
        "f(x) + [5]": lambda f, x: f(x) + np.ones(5),
        "f(x) @ W": lambda f, x: f(x) @ np.ones((1, 1)),
        "f(x)[:3]": lambda f, x: f(x)[:3],
        "f": lambda f, x: f,
        "f(1.0)": lambda f, x: f(1.0),
        "f(x[:, 0])": lambda f, x: f(x[:, 0]),
        "an array": lambda f, x: jnp.zeros(20),
        "recorded": lambda f, x: numpyro.deterministic("g", f(x)),
    }
    for name, latent in latents.items():
        yield Case("latent", name, partial(fit, model_of(latent=latent)))

    def plain(x, y=None, mask=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), Z)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(f(x), 0.1), obs=y)

    for call in (fit, sample):
        yield Case("latent", f"numpyro.sample, {call.__name__}", partial(call, plain))

    def discrete(x, y=None):
        shift = numpyro.sample("shift", dist.Bernoulli(0.5))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x) + shift, obs=y)

    for call in (fit, sample):
        yield Case("latent", f"discrete site, {call.__name__}", partial(call, discrete))


def numbers_that_are_none(good: np.ndarray) -> dict[str, Any]:
    """Arrays of the right shape that hold no usable numbers."""
    words = np.array(list("ab" * 10)).reshape(good.shape)
    days = np.arange(20).reshape(good.shape)
    holes = np.where(np.arange(20).reshape(good.shape) == 7, np.nan, good)
    return {
        "words": words,
        "objects": good.astype(object),
        "dates": days.astype("datetime64[D]"),
        "durations": days.astype("timedelta64[D]"),
        "complex": good + 0j,
        "records": np.zeros(good.shape, [("a", float)]),
        "masked": np.ma.masked_array(good, good > 2),
        "NaN": holes,
        "infinite": np.where(np.isnan(holes), np.inf, good),
        "None": [None] * 20,
        "ragged": [[1], [2, 3]] * 10,
        "nothing": good[:0],
    }


def bad_data() -> Iterator[Case]:
    for name, y in numbers_that_are_none(Y).items():
        for call in (fit, sample):
            yield Case("y", f"{call.__name__} {name}", partial(call, y=y))
        at = gp.predict(MODEL, DRAWS, X)["y"]
        yield Case("y", f"log_prob {name}", partial(at.log_prob, y))
    for name, x in numbers_that_are_none(X).items():
        for call in (fit, sample, predict, functions):
            yield Case("x", f"{call.__name__} {name}", partial(call, x=x))
        yield Case("x", f"kmeans {name}", partial(gp.inducing.kmeans, x, 3))
        yield Case("z", f"{name}", partial(fit, model_of(z=x)))
    shapes = {"[N]": X[:, 0], "[1, N, 1]": X[None], "two columns": np.ones((9, 2))}
    for name, x in shapes.items():
        for call in (fit, predict, functions):
            yield Case("x", f"{call.__name__} {name}", partial(call, x=x))
    for name, y in {"[N, 1]": Y[:, None], "short": Y[:5], "a number": 3.0}.items():
        for call in (fit, sample):
            yield Case("y", f"{call.__name__} {name}", partial(call, y=y))


def bad_labels() -> Iterator[Case]:
    zero_one = Y % 2
    halves, minus = zero_one + 0.5, zero_one - 1
    classes = {"num_outputs": 3}
    noisy = gp.likelihoods.AdditiveNoiseBernoulli("probit")
    noisy_classes = gp.likelihoods.AdditiveNoiseCategorical(3)
    log_warp = gp.likelihoods.Warped(dist.transforms.ExpTransform().inv, 0.3)
    likelihoods: list[tuple[str, Any, dict, list]] = [
        ("Poisson", gp.likelihoods.Poisson(), {}, [halves, minus]),
        ("Bernoulli", gp.likelihoods.Bernoulli(), {}, [halves, minus, Y + 1]),
        ("probit", gp.likelihoods.Bernoulli("probit"), {}, [halves, minus, Y + 1]),
        ("noisy", noisy, {}, [halves, minus, Y + 1]),
        ("Softmax", gp.likelihoods.Softmax(3), classes, [halves, minus, Y + 3]),
        ("noisy classes", noisy_classes, classes, [halves, minus, Y + 3]),
        ("one-hot", gp.likelihoods.Softmax(3), classes, [np.eye(3)[Y % 3]]),
        ("Gamma", lambda f: dist.Gamma(2.0, jnp.exp(f)), {}, [minus, Y * 0]),
        ("Beta", lambda f: dist.Beta(2.0, jnp.exp(f)), {}, [minus, Y + 1.0]),
        ("Binomial", lambda f: dist.Binomial(2, logits=f), {}, [halves, Y + 3]),
        ("warped", log_warp, {}, [minus, Y * 0]),
    ]
    for name, likelihood, options, labels in likelihoods:
        model = model_of(likelihood, **options)
        for number, y in enumerate(labels):
            for call in (fit, sample):
                words = f"{name} {number}, {call.__name__}"
                yield Case("labels", words, partial(call, model, y=y))


def bad_values() -> Iterator[Case]:
    """Hyperparameters, likelihoods and masks."""
    values = {"0": 0.0, "-1": -1.0, "nan": np.nan, "'a'": "a", "None": None}
    kernels: dict[str, Callable] = {
        "lengthscale": lambda v: gp.kernels.RBF(1.0, v),
        "variance": lambda v: gp.kernels.Matern32(v, 1.0),
        "period": lambda v: gp.kernels.Periodic(gp.kernels.RBF(1.0, 1.0), v),
        "alpha": lambda v: gp.kernels.RationalQuadratic(1.0, 1.0, v),
        "of a part": lambda v: gp.kernels.RBF(1.0, 1.0) + gp.kernels.RBF(1.0, v),
    }
    for name, value in values.items():
        for part, kernel in kernels.items():
            run = partial(fit, model_of(kernel=partial(kernel, value)))
            yield Case("value", f"{part}={name}", run)
        held = {
            "Gaussian": gp.likelihoods.Gaussian,
            "StudentT": lambda v: gp.likelihoods.StudentT(v, 1.0),
            "Poisson": gp.likelihoods.Poisson,
            "Normal": lambda v: lambda f: dist.Normal(f, v),
            "flip": lambda v: gp.likelihoods.AdditiveNoiseBernoulli("step", v),
        }
        for part, likelihood in held.items():
            run = lambda p=likelihood, v=value: fit(model_of(p(v)), y=Y % 2)  # noqa: E731
            yield Case("value", f"{part}({name})", run)
    for name, value in {"-1": -1.0, "nan": np.nan, "[2]": np.ones(2)}.items():
        yield Case("value", f"jitter={name}", partial(fit, model_of(jitter=value)))
    lengths = {"[7]": np.ones(7), "[N, 1]": np.ones((20, 1))}
    for name, value in lengths.items():
        held = {"exposure": gp.likelihoods.Poisson, "scale": gp.likelihoods.Gaussian}
        for part, likelihood in held.items():
            run = partial(fit, model_of(likelihood(value)))
            yield Case("value", f"{part} {name}", run)
    others = {
        "variance=inf": {"kernel": partial(gp.kernels.RBF, np.inf, 1.0)},
        "kernel class": {"kernel": lambda: gp.kernels.RBF},
        "mean=1.0": {"mean": 1.0},
    }
    for name, options in others.items():
        yield Case("value", name, partial(fit, model_of(**options)))
    masks = {
        "numbers": np.ones(20),
        "short": np.ones(5, bool),
        "[N, 1]": np.ones((20, 1), bool),
        "[N, N]": np.ones((20, 20), bool),
        "words": np.array(["a"] * 20),
    }
    for name, mask in masks.items():
        for call in (fit, sample):
            yield Case("mask", f"{call.__name__} {name}", partial(call, mask=mask))
    holes = np.where(np.arange(20) == 3, np.nan, Y)
    for call in (fit, sample):
        run = partial(call, y=holes, mask=np.ones(20, bool))
        yield Case("mask", f"{call.__name__} of a NaN that counts", run)


def bad_predictions() -> Iterator[Case]:
    posteriors = {
        "a word": "fit",
        "3": 3,
        "an empty dict": {},
        "another shape": {"f": np.zeros((2, 7))},
        "no draws": {"f": np.zeros((0, 5))},
        "NaN": {"f": np.full((2, 5), np.nan)},
        "unequal lengths": {"f": np.zeros((2, 5)), "g": np.zeros(3)},
        "no process": {"g": np.zeros((2, 5))},
    }
    for name, posterior in posteriors.items():
        run = partial(predict, posterior=posterior)
        yield Case("prediction", f"from {name}", run)
    yield Case("prediction", "method", partial(functions, method="x"))

    def batched(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), Z)
        with numpyro.plate("data", 20, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    more = np.linspace(0.0, 5.0, 33)[:, None]
    for call in (predict, functions):
        run = partial(call, batched, more)
        yield Case("prediction", f"{call.__name__} at more rows", run)


REFUSED = (
    bad_keys,
    bad_counts,
    bad_objects,
    bad_latents,
    bad_data,
    bad_labels,
    bad_values,
    bad_predictions,
)
