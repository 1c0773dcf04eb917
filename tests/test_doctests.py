"""The examples of the docstrings run as they stand, in single precision as by default.

They share what the block at the top of the reference (docs/api.md) makes: a model, its
data, a fit and draws.
"""

import ast
import doctest
import inspect
import io
import re
import warnings
from pathlib import Path

import jax
import matplotlib
import matplotlib.pyplot as plt
import pytest

import svgp_ppl as gp

ROOT = Path(__file__).parent.parent
FILES = [
    path
    for path in sorted((ROOT / "svgp_ppl").rglob("*.py"))
    if ">>> " in path.read_text()
]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


# Public names without an example: what functions return or raise, what others write
# (docs/extending.md has examples), parts of the machinery, data that are downloaded.
WITHOUT = """
    NonFiniteBoundError SparseGP datasets.Counts datasets.GridCounts datasets.Labelled
    datasets.Split datasets.SplitCounts deep.Layer deep.LinearMean diagnostics.Axes
    diagnostics.Finding diagnostics.LOO diagnostics.Report diagnostics.WAIC
    diagnostics.axes_of features.InducingFeatures features.Integral
    features.LinearFunctional features.as_features features.as_functional
    features.covariance features.has_rows features.jitter_of
    features.paired_covariance
    kernels.FunctionKernel kernels.TinygpKernel kernels.Kernel kernels.kernel_values
    mcmc.Adaptive mcmc.Chains mcmc.HostAdaptation
    mcmc.HostAdapted mcmc.Sampler mcmc.StochasticGradient mcmc.TunesTogether
    mcmc.UsesPrior
    variational.Entropy variational.Projected variational.full_gaussian
    variational.group_of variational.is_coupled variational.log_weights
    variational.project_outputs variational.simplified
    datasets.banana datasets.coal_split datasets.image datasets.pines datasets.savigp
    datasets.table datasets.uci datasets.uci_classes
    expectations.Method expectations.average expectations.average_about
    expectations.closed_form_cdf
    expectations.closed_form_log_predictive expectations.default_method
    expectations.hermite_grid expectations.is_log_concave expectations.is_random
    expectations.latent_cdf
    expectations.log_average_by_trapezoid expectations.log_predictive_density
    expectations.nearest_singularity expectations.normal_nodes
    expectations.num_components expectations.points expectations.predictive_cdf
    expectations.predictive_mean_and_variance expectations.predictive_probabilities
    expectations.shifted
"""


@pytest.fixture(scope="module")
def namespace():
    page = (ROOT / "docs" / "api.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    plt.close("all")  # a change of the backend would
    matplotlib.use("agg")
    names = {}
    with jax.enable_x64(False):
        exec(code, names)
    return names


def examples(path, names):
    """The doctests of one file: from its text, which no import hook has changed."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, DOCUMENTED) and ">>> " in (ast.get_docstring(node) or ""):
            name = getattr(node, "name", path.stem)
            line = node.body[0].lineno - 1
            docstring = ast.get_docstring(node)
            parser = doctest.DocTestParser()
            yield parser.get_doctest(docstring, dict(names), name, str(path), line)


@pytest.mark.docs
@pytest.mark.parametrize("precision", [32], indirect=True)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_examples_run(path, precision, namespace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plt.close("all")  # figures that other tests have left
    assert "+SKIP" not in path.read_text()
    runner, report = doctest.DocTestRunner(optionflags=OPTIONS), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # ArviZ, of so few draws
        for test in examples(path, namespace):
            runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


def public(module, prefix=""):
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from public(value, f"{name}.")
        else:
            yield prefix + name, value


def test_public_names_have_examples():
    without = {n for n, value in public(gp) if ">>> " not in (value.__doc__ or "")}
    assert sorted(without) == sorted(WITHOUT.split())


def rendered():
    """The docstrings of the reference: public modules, names and methods."""
    for module in map(vars(gp).get, gp.__all__):
        if inspect.ismodule(module):
            yield module.__name__, module.__doc__, "module"
    for name, value in public(gp):
        yield name, value.__doc__, "class" if inspect.isclass(value) else "function"
        for method, function in inspect.getmembers(value, inspect.isfunction):
            if function.__module__.startswith("svgp_ppl"):
                yield f"{name}.{method}", function.__doc__, "method"


@pytest.mark.docs
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_docstrings_are_rendered_without_complaint(precision):
    """A build of the site finds these too, after it has run every page."""
    core = pytest.importorskip("docutils.core")
    nodes = pytest.importorskip("docutils.nodes")
    roles = pytest.importorskip("docutils.parsers.rst.roles")
    napoleon = pytest.importorskip("sphinx.ext.napoleon")
    for role in ("attr", "class", "data", "doc", "func", "meth", "mod"):
        roles.register_generic_role(role, nodes.literal)
    config, complaints = napoleon.Config(napoleon_use_ivar=True), []
    for name, docstring, what in rendered():
        docstring = inspect.cleandoc(docstring or "")
        text = napoleon.GoogleDocstring(docstring, config, what=what)
        stream = io.StringIO()
        options = {"warning_stream": stream, "report_level": 2}
        core.publish_doctree(str(text), settings_overrides=options)
        if stream.getvalue():
            complaints.append(f"{name}: {stream.getvalue()}")
    assert not complaints, "\n".join(complaints)
