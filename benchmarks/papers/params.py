"""Params of the models of the papers."""

import numpyro
from numpyro.distributions import constraints


def positive(name, value):
    """A param that stays positive."""
    return numpyro.param(name, value, constraint=constraints.softplus_positive)
