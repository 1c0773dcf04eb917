"""Running long work: programs compiled once, progress shown, state kept in files."""

from svgp_ppl.runtime.compilation import cache_compilations
from svgp_ppl.runtime.progress import Progress, progress_bar
from svgp_ppl.runtime.sharing import Once

__all__ = ["Once", "Progress", "cache_compilations", "progress_bar"]
