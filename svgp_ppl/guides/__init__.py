"""Ready-made variational distributions: guides that a model is fitted with.

Each is a NumPyro ``AutoGuide``: the whitened values of every process get a q(v), all
other latent sites another guide, ``rest`` (point estimates by default).
:class:`ProcessGuide` is what they have in common, and the base class for your own.
"""

from svgp_ppl.guides.coupled import AutoCoupled
from svgp_ppl.guides.deep import AutoDeep
from svgp_ppl.guides.gaussian import AutoGaussian
from svgp_ppl.guides.mixture import AutoMixture
from svgp_ppl.guides.processes import Group, ProcessGuide
from svgp_ppl.guides.sites import AutoSites

__all__ = [
    "AutoCoupled",
    "AutoDeep",
    "AutoGaussian",
    "AutoMixture",
    "AutoSites",
    "Group",
    "ProcessGuide",
]
