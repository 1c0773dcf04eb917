"""Expectations under the marginal of a latent, by quadrature or by draws.

``variational``  E_q log p(y|f), the variational expectation
``predictive``   log E_q p(y|f), the log predictive density, and probabilities
``moments``      the mean and variance of y
``cumulative``   P(y <= a), for quantiles
``incomplete``   P(y <= a) of one distribution, with large parameters too
``log_average``  log E p(y|f) for one component
``box``          the same for two or three
``importance``   and for more
``mixtures``     of a mixture, by its terms
``broad``        where p(y|f) is broad within the marginal of one component
``modes``        a mode of the integrand in several components
``climb``        climbs to a maximum
``trapezoid``    a rule for one component that bends within a wide marginal
``dispatch``     which formulas a likelihood has
``nodes``        quadrature nodes and draws, and the choice between them
"""

from svgp_ppl.expectations.cumulative import (
    closed_form_cdf,
    latent_cdf,
    predictive_cdf,
)
from svgp_ppl.expectations.log_average import (
    is_log_concave,
    log_average_by_trapezoid,
)
from svgp_ppl.expectations.moments import predictive_mean_and_variance
from svgp_ppl.expectations.nodes import (
    ClosedForm,
    GaussHermite,
    Method,
    MonteCarlo,
    QuasiMonteCarlo,
    Trapezoid,
    average,
    default_method,
    hermite_grid,
    is_random,
    normal_nodes,
    num_components,
    points,
    shifted,
)
from svgp_ppl.expectations.predictive import (
    closed_form_log_predictive,
    log_predictive_density,
    predictive_probabilities,
)
from svgp_ppl.expectations.trapezoid import average_about, nearest_singularity
from svgp_ppl.expectations.variational import (
    closed_form_expectation,
    variational_expectation,
)

__all__ = [
    "ClosedForm",
    "GaussHermite",
    "Method",
    "MonteCarlo",
    "QuasiMonteCarlo",
    "Trapezoid",
    "average",
    "average_about",
    "closed_form_cdf",
    "closed_form_expectation",
    "closed_form_log_predictive",
    "default_method",
    "hermite_grid",
    "is_log_concave",
    "is_random",
    "latent_cdf",
    "log_average_by_trapezoid",
    "log_predictive_density",
    "nearest_singularity",
    "normal_nodes",
    "num_components",
    "points",
    "predictive_cdf",
    "predictive_mean_and_variance",
    "predictive_probabilities",
    "shifted",
    "variational_expectation",
]
