"""Problems for samplers of other libraries, and their draws."""

import numpy as np
from jax import random

from benchmarks.sampling.problems import Problem
from svgp_ppl.diagnostics import to_arviz
from svgp_ppl.mcmc.target import Target

__all__ = ["export", "load"]

# Shape and rate of the Gamma priors of variance and lengthscale, and the likelihood.
KNOWN = {
    "coal": (((1.0, 0.3), (1.1, 0.1)), "poisson"),
    "image": (((1.1, 1.0), (1.1, 1.0)), "probit"),
}


def export(path: str, name: str, problem: Problem, fit) -> None:
    """The problem and the start of a chain."""
    priors, likelihood = KNOWN[name]
    target = Target(random.key(1), problem.model, problem[1:3], {}, fit.params)
    start = target.positions_from(random.key(2), fit.guide, fit.params, 1)
    values = target.constrain({n: v[0] for n, v in start.items()}, target.data)
    np.savez(
        path,
        x=np.asarray(problem.x),
        y=np.asarray(problem.y),
        z=np.asarray(fit.params["z"]),
        v=np.asarray(values["f"]),
        variance=float(values["variance"]),
        lengthscale=float(values["lengthscale"]),
        priors=priors,
        likelihood=likelihood,
    )


def load(path: str):
    """Draws of one chain of another library, and the seconds of the whole call."""
    with np.load(path) as held:
        draws = to_arviz(
            {n: held[n][None] for n in ("v", "variance", "lengthscale")},
            sample_stats={"n_steps": held["n_steps"][None]},
            attrs={
                "sampling_seconds": float(held["seconds"]),
                "num_gradients": int(held["num_gradients"]),
            },
        )
        return draws, float(held.get("call_seconds", np.nan))
