"""Models and data on which samplers are compared; z from k-means or a grid, fitted."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import svgp_ppl as gp
from svgp_ppl.__main__ import coal_model

__all__ = ["PROBLEMS", "Problem"]


class Problem(NamedTuple):
    """A model with its data, and how it is fitted."""

    model: Callable
    x: Any
    y: Any
    num_steps: int = 3000


def one_process(z_start, likelihood: Callable, prior: Callable, num_outputs=None):
    """An RBF process (or several) on fitted z; hyperparameters by ``prior()``."""

    def model(x, y=None):
        kernel = gp.kernels.RBF(*prior())
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", kernel, z, num_outputs=num_outputs)
        noise = likelihood()  # its sites are outside of the plate
        with numpyro.plate("data", len(x)):
            gp.observe("y", noise, f(x), obs=y)

    return model


def gammas(variance: tuple, lengthscale: tuple, num_columns: int | None = None):
    """Gamma priors of variance and lengthscale, one a column where there are any."""

    def prior():
        shape = () if num_columns is None else (num_columns,)
        lengthscales = dist.Gamma(*lengthscale).expand(shape).to_event(len(shape))
        return (
            numpyro.sample("variance", dist.Gamma(*variance)),
            numpyro.sample("lengthscale", lengthscales),
        )

    return prior


def wide(num_columns: int):
    """Priors for standardised columns: a variance and a lengthscale each."""

    def prior():
        lengthscales = dist.LogNormal(1.0, 1.0).expand((num_columns,)).to_event(1)
        return (
            numpyro.sample("variance", dist.LogNormal(0.0, 1.0)),
            numpyro.sample("lengthscale", lengthscales),
        )

    return prior


def scale():
    """Prior of the noise's sd, for standardised y."""
    return numpyro.sample("scale", dist.LogNormal(-1.0, 1.0))


def coal() -> Problem:
    """Disasters in coal mines, a year a bin: counts, M = 30."""
    data = gp.datasets.coal()
    return Problem(coal_model(gp.inducing.grid(data.x, 30)), data.x, data.y)


def image(num_columns: int | None = None, m: int = 100) -> Problem:
    """Image segments: 1000 labels on 18 columns, probit."""
    data = gp.datasets.image()
    model = one_process(
        gp.inducing.kmeans(data.x, m),
        lambda: gp.likelihoods.Bernoulli("probit"),
        gammas((1.1, 1.0), (1.1, 1.0), num_columns),
    )
    return Problem(model, data.x, data.y)


def pines() -> Problem:
    """Saplings on a map of 32 × 32 cells: counts, M = 15 × 15."""
    data = gp.datasets.pines(32)
    middle = (np.arange(15) + 0.5) * 10.0 / 15
    z = np.stack(np.meshgrid(middle, middle, indexing="ij"), axis=-1).reshape(-1, 2)
    model = one_process(
        z,
        lambda: gp.likelihoods.Poisson(data.area),
        gammas((1.2, 1.0), (1.75, 1.0)),
    )
    return Problem(model, data.x, data.y)


def classes() -> Problem:
    """Three classes on a plane, 750 labels: softmax of three processes, M = 50."""
    data = gp.datasets.three_classes()
    model = one_process(
        gp.inducing.kmeans(data.x, 50),
        lambda: gp.likelihoods.Softmax(3),
        gammas((3.0, 3.0), (3.0, 2.0)),
        num_outputs=3,
    )
    return Problem(model, data.x, data.y)


def student_t() -> Problem:
    """Strength of concrete: Student-t noise with 4 degrees of freedom, M = 50."""
    data = gp.datasets.uci("concrete")
    model = one_process(
        gp.inducing.kmeans(data.x, 50),
        lambda: gp.likelihoods.StudentT(4.0, scale()),
        wide(data.x.shape[1]),
    )
    return Problem(model, data.x, data.y, num_steps=5000)


def gaussian(name: str, num_rows: int = 2000, first_column: int = 0) -> Problem:
    """A UCI set with Gaussian noise, M = 100: v can be integrated out."""
    data = gp.datasets.uci(name)
    x, y = data.x[:num_rows, first_column:], data.y[:num_rows]
    model = one_process(
        gp.inducing.kmeans(x, 100),
        lambda: gp.likelihoods.Gaussian(scale()),
        wide(x.shape[1]),
    )
    return Problem(model, x, y, num_steps=5000)


def heteroscedastic() -> Problem:
    """Noise that depends on x: prices of houses in Boston, two processes, M = 50."""
    data = gp.datasets.uci("boston")
    z_start = gp.inducing.kmeans(data.x, 50)

    def process(name):
        variance = numpyro.sample(f"{name}_variance", dist.LogNormal(0.0, 1.0))
        lengthscale = numpyro.sample(f"{name}_lengthscale", dist.LogNormal(1.0, 1.0))
        kernel = gp.kernels.RBF(variance, lengthscale)
        return gp.sparse_gp(name, kernel, numpyro.param(f"{name}_z", z_start))

    def model(x, y=None):
        values = gp.stack([process("f")(x), process("g")(x) - 1.0])
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.HeteroscedasticGaussian(), values, obs=y)

    return Problem(model, data.x, data.y)


def additive() -> Problem:
    """Counts with a sum of two processes as log rate, M = 20 each."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, size=(500, 2))
    y = rng.poisson(np.exp(np.sin(x[:, 0]) ** 3 + np.cos(3 * x[:, 1])))

    def process(name, column):
        variance = numpyro.sample(f"{name}_variance", dist.LogNormal(0.0, 1.0))
        lengthscale = numpyro.sample(f"{name}_lengthscale", dist.LogNormal(0.0, 1.0))
        kernel = gp.kernels.RBF(variance, lengthscale)
        z = numpyro.param(f"{name}_z", gp.inducing.grid(x[:, [column]], 20))
        return gp.sparse_gp(name, kernel, z)

    def model(x, y=None):
        f, g = process("f", 0)(x[:, [0]]), process("g", 1)(x[:, [1]])
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f + g, obs=y)

    return Problem(model, jnp.asarray(x), y)


def regions() -> Problem:
    """Counts of 300 places: processes of place and year, a slope, groups; D = 54."""
    rng = np.random.default_rng(0)
    place = rng.uniform((0.0, 0.0), (10.0, 5.0), (300, 2))
    year, region = rng.integers(0, 10, 300), rng.integers(0, 5, 300)
    income, exposed = rng.normal(size=300), rng.integers(200, 5000, 300)
    of_place = np.sin(place[:, 0] / 1.5) * np.cos(place[:, 1])
    of_region = np.array([0.3, -0.2, 0.0, 0.5, -0.4])[region]
    rate = np.exp(-5.0 + 0.4 * income + of_place + 0.05 * (year - 5) + of_region)
    y = rng.negative_binomial(5, 5 / (5 + exposed * rate))
    x = np.column_stack([place, year, income, np.log(exposed), region])
    z = gp.inducing.kmeans(place, 30)

    def process(name, z, lengthscales):
        variance = numpyro.sample(f"{name}_variance", dist.HalfNormal(1.0))
        lengthscale = numpyro.sample(f"{name}_lengthscale", lengthscales)
        return gp.sparse_gp(name, gp.kernels.Matern32(variance, lengthscale), z)

    def model(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        intercept = numpyro.sample("intercept", dist.Normal(-5.0, 2.0))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        with numpyro.plate("regions", 5):
            effect = numpyro.sample("effect", dist.Normal(0.0, spread))
        f = process("place", z, dist.InverseGamma(3.0, 3.0).expand([2]).to_event(1))
        g = process("year", np.arange(10.0)[:, None], dist.InverseGamma(3.0, 10.0))
        concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.2))
        linear = intercept + slope * x[:, 3] + x[:, 4] + effect[x[:, 5].astype(int)]
        with numpyro.plate("data", len(x)):
            likelihood = gp.likelihoods.NegativeBinomial(concentration)
            gp.observe("y", likelihood, f(x[:, :2]) + g(x[:, [2]]) + linear, obs=y)

    return Problem(model, x, y)


def plane(m: int = 50) -> Problem:
    """Counts at random places of a plane, with z at some of them, fixed."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, (1000, 2))
    y = rng.poisson(np.exp(1.0 + np.sin(2.0 * x[:, 0]) * np.cos(1.5 * x[:, 1])))
    z = jnp.asarray(rng.permutation(x)[:m])

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.HalfNormal(3.0))
        lengthscale = numpyro.sample("lengthscale", dist.InverseGamma(5.0, 5.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    return Problem(model, x, y)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "coal": coal,
    "image": image,
    "image-ard": lambda: image(num_columns=18, m=50),
    "pines": pines,
    "plane": plane,
    "plane-150": lambda: plane(150),
    "classes": classes,
    "student-t": student_t,
    "heteroscedastic": heteroscedastic,
    "additive": additive,
    "regions": regions,
    "concrete": lambda: gaussian("concrete"),
    "energy": lambda: gaussian("energy"),
    # Compactness and surface left out, which follow from the others.
    "energy-6": lambda: gaussian("energy", first_column=2),
    "kin8nm": lambda: gaussian("kin8nm"),
}
