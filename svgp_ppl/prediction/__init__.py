"""A model at new inputs, under what was learnt: moments, densities, sample paths."""

from svgp_ppl.prediction.predict import Prediction, predict
from svgp_ppl.prediction.sample_paths import draw_functions

__all__ = ["Prediction", "draw_functions", "predict"]
