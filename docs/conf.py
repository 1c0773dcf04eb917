"""Sphinx configuration: pages are MyST Markdown, executed by myst-nb."""

import os
import shutil
from pathlib import Path

# The pages share the cores with whatever else runs; read when OpenBLAS is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Every page is a process of its own: what one has compiled serves the next.
_cache = Path(__file__).parent / "_build" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_cache))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import svgp_ppl

project = "svgp_ppl"
author = "The svgp_ppl developers"
copyright = author
version = release = svgp_ppl.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "jupyter_execute", "**.ipynb_checkpoints"]

html_theme = "furo"
html_title = "svgp_ppl"

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

# A page is run again when its code has changed; an error in it fails the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parent / "_build" / "cache")
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_excludepatterns = ["notebooks/*"]
nb_merge_streams = True
# Progress bars and the like go to stderr and do not belong in a page.
nb_output_stderr = "remove"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# The notebooks live beside the docs, executed already; the build reads a copy.
here = Path(__file__).parent
(here / "notebooks").mkdir(exist_ok=True)
for notebook in (here.parent / "notebooks").glob("*.ipynb"):
    shutil.copy(notebook, here / "notebooks" / notebook.name)
