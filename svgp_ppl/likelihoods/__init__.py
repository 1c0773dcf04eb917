"""Likelihood objects: callables f -> distribution, with the closed forms they allow.

Any callable f -> NumPyro distribution is a likelihood; these add E log p(y|f), and
log E p(y|f), in closed form where one exists. Two of them, with additive noise and
softmax with ``bound="gumbel"``, replace E log p(y|f) by a lower bound.
"""

from svgp_ppl.likelihoods.binary import AdditiveNoiseBernoulli, Bernoulli
from svgp_ppl.likelihoods.classes import AdditiveNoiseCategorical, Softmax
from svgp_ppl.likelihoods.counts import Poisson
from svgp_ppl.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian, StudentT
from svgp_ppl.likelihoods.ordinal import Ordinal
from svgp_ppl.likelihoods.overdispersed import NegativeBinomial, ZeroInflatedPoisson
from svgp_ppl.likelihoods.positive import Exponential, Gamma
from svgp_ppl.likelihoods.regression_network import GPRN
from svgp_ppl.likelihoods.shares import Beta, Binomial
from svgp_ppl.likelihoods.survival import CensoredGaussian, Weibull
from svgp_ppl.likelihoods.warped import Warped

__all__ = [
    "GPRN",
    "AdditiveNoiseBernoulli",
    "AdditiveNoiseCategorical",
    "Bernoulli",
    "Beta",
    "Binomial",
    "CensoredGaussian",
    "Exponential",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Softmax",
    "StudentT",
    "Warped",
    "Weibull",
    "ZeroInflatedPoisson",
]
