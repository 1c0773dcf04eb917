"""A model under its posterior: moments, densities, sample paths; and checks of it."""

from svgp_ppl.prediction.batches import predict_batches
from svgp_ppl.prediction.checking import (
    log_likelihood,
    posterior_predictive,
    prior_predictive,
)
from svgp_ppl.prediction.predict import Prediction, predict
from svgp_ppl.prediction.sample_paths import draw_functions

__all__ = [
    "Prediction",
    "draw_functions",
    "log_likelihood",
    "posterior_predictive",
    "predict",
    "predict_batches",
    "prior_predictive",
]
