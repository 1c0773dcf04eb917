"""What is held of the whitened values v: any NumPyro distribution over them.

Two open functions dispatch on the belief, and a third party may register its own type:

    project(belief, a)      moments of aᵀ v, the belief's share of a marginal
    kl_to_white(belief)     KL( q(v) ‖ N(0, I) )

Known beliefs: ``Delta``; ``Normal`` (diagonal) and ``MultivariateNormal`` (full), with
``to_event`` for several outputs; :class:`Block`, the share of one process in a joint
belief over the stacked v of several; ``MixtureSameFamily`` of any of them, or of a
:class:`Stacked`, whose components several processes share.
"""

from svgp_ppl.beliefs.divergence import Entropy, kl_to_white
from svgp_ppl.beliefs.joint import (
    Block,
    Stacked,
    group_of,
    is_coupled,
    log_weights,
    split,
    unstack,
)
from svgp_ppl.beliefs.projection import Projected, full_gaussian, is_belief, project

__all__ = [
    "Block",
    "Entropy",
    "Projected",
    "Stacked",
    "full_gaussian",
    "group_of",
    "is_belief",
    "is_coupled",
    "kl_to_white",
    "log_weights",
    "project",
    "split",
    "unstack",
]
