"""All experiments."""

from benchmarks.papers.coupled import additive
from benchmarks.papers.deep import classification, regression, step_time
from benchmarks.papers.mcmc import chains, clouds, coal_posterior, image, pines
from benchmarks.papers.mcmc import coal as coal_held_out
from benchmarks.papers.mcmc import digits as mcmc_digits
from benchmarks.papers.noise import averages, toys, uci
from benchmarks.papers.savigp import coal, digits, gprn, sparsity

EXPERIMENTS = (
    *sparsity.SPARSITY,
    coal.COAL,
    digits.MNIST,
    gprn.SARCOS,
    image.IMAGE,
    coal_held_out.HELD_OUT,
    coal_posterior.POSTERIOR,
    pines.PINES,
    pines.PINES_64,
    clouds.CLOUDS,
    mcmc_digits.MNIST,
    chains.CHAINS,
    additive.TABLE_1,
    *regression.UCI,
    regression.DEPTH,
    step_time.STEP_TIME,
    classification.RECTANGLES,
    classification.MNIST,
    *regression.LARGE_SETS,
    regression.AIRLINE,
    *classification.PHYSICS,
    toys.TOYS,
    *uci.ALONE,
    *uci.COMBINED,
    averages.AVERAGES,
    uci.AIRLINE,
    *uci.FIXED,
)
