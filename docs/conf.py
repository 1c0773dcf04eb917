"""Sphinx configuration: pages are MyST Markdown, executed by myst-nb."""

import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

# The pages share the cores with whatever else runs; read when OpenBLAS is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Every page is a process of its own: what one has compiled serves the next.
here = Path(__file__).parent
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(here / "_build" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# What pages wait for is the compiler: two thirds of its time where it knows these.
fast = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
fast += " --xla_cpu_parallel_codegen_split_count=1"
tried = {**os.environ, "XLA_FLAGS": fast}  # an unknown one ends the process
call = [sys.executable, "-c", "import jax; jax.numpy.zeros(1).block_until_ready()"]
if subprocess.run(call, env=tried, capture_output=True).returncode == 0:
    os.environ.setdefault("XLA_FLAGS", fast)

project = "svgp_ppl"
author = "The svgp_ppl developers"
copyright = author
# Read and not imported: JAX has threads, and ``sphinx-build -j`` forks this process.
source_of_version = (here.parent / "svgp_ppl" / "__init__.py").read_text()
version = release = re.findall(r'^__version__ = "(.+)"$', source_of_version, re.M)[0]
with open(here.parent / "pyproject.toml", "rb") as file:
    repository = tomllib.load(file)["project"]["urls"]["Repository"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
# paper/ is a manuscript, with a build of its own.
exclude_patterns = ["_build", "jupyter_execute", "paper", "**.ipynb_checkpoints"]

html_theme = "furo"
html_title = "svgp_ppl"
html_static_path = ["_static"]
html_css_files = ["pages.css"]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

# A page is run again when its code has changed; an error in it fails the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(here / "_build" / "cache")
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
# Names as one writes them after the import: kernels.RBF and not svgp_ppl.kernels.RBF.
add_module_names = False
toc_object_entries_show_parents = "hide"


def is_reachable(address: str) -> bool:
    """Whether an inventory can be had; a build without network goes on without it."""
    try:
        with urllib.request.urlopen(f"{address}objects.inv", timeout=3):
            return True
    except OSError:
        return False


_libraries = {
    "python": "https://docs.python.org/3/",
    "numpyro": "https://num.pyro.ai/en/stable/",
    "jax": "https://docs.jax.dev/en/latest/",
    "arviz": "https://python.arviz.org/en/stable/",
    "blackjax": "https://blackjax-devs.github.io/blackjax/",
}
intersphinx_mapping = {
    name: (address, None)
    for name, address in _libraries.items()
    if is_reachable(address)
}

# The notebooks live beside the docs, executed already; the build reads a copy.
(here / "notebooks").mkdir(exist_ok=True)
for notebook in (here.parent / "notebooks").glob("*.ipynb"):
    text = notebook.read_text().replace("](../docs/", "](../")
    copied = here / "notebooks" / notebook.name
    if not copied.exists() or copied.read_text() != text:
        copied.write_text(text)


def links_of_the_site(app, docname, source):
    """Links that lead out of docs/, right in the repository, made right on the site."""
    up = "../" * (docname.count("/") + 1)
    folder = re.escape(f"]({up}")
    text = re.sub(folder + "notebooks/", f"]({up[3:]}notebooks/", source[0])
    source[0] = re.sub(folder + r"(?!\.\./)", f"]({repository}/blob/main/", text)


def without_empty_patterns(app, docname, source):
    """Leaves out patterns of a table of contents that match no page: a warning."""
    folder = (here / docname).parent
    patterns = re.findall(r"^[\w/-]+\*$", source[0], re.M)
    for pattern in patterns if ":glob:" in source[0] else ():
        if not any(folder.glob(pattern)):
            source[0] = source[0].replace(f"\n{pattern}\n", "\n")


def setup(app):
    """Connect the hooks."""
    app.connect("source-read", links_of_the_site)
    app.connect("source-read", without_empty_patterns)
