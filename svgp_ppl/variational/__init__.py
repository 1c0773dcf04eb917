"""Variational distributions q(v) of the whitened values: any NumPyro distribution.

Two open functions dispatch on q(v):

    project(qv, a)      moments of aᵀ v, the share of q(v) in a marginal
    prior_kl(qv)        KL( q(v) ‖ N(0, I) )

A family of your own is one class, registered with ``project``; its KL follows from
``mean``, ``variance`` and ``entropy()``. Known: ``Delta``; ``Normal`` (diagonal) and
``MultivariateNormal`` (full), with ``to_event`` for several outputs; :class:`Block`,
the share of one process in a joint q(v) over the stacked v of several;
``MixtureSameFamily`` of any of them, or of a :class:`Stacked`, whose components several
processes share.
"""

from svgp_ppl.variational.divergence import Entropy, expected_log_prior, prior_kl
from svgp_ppl.variational.joint import (
    Block,
    Stacked,
    group_of,
    is_coupled,
    log_weights,
    split,
    unstack,
)
from svgp_ppl.variational.projection import (
    Projected,
    can_marginalise,
    full_gaussian,
    project,
    project_outputs,
    simplified,
)

__all__ = [
    "Block",
    "Entropy",
    "Projected",
    "Stacked",
    "can_marginalise",
    "expected_log_prior",
    "full_gaussian",
    "group_of",
    "is_coupled",
    "log_weights",
    "prior_kl",
    "project",
    "project_outputs",
    "simplified",
    "split",
    "unstack",
]
