"""Who may import whom, read from the syntax trees; and what importing must not do."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from dataclasses import is_dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from numpyro import handlers

import svgp_ppl as gp
from svgp_ppl.mcmc.target import Target
from tests.models import COUNTS_X, COUNTS_Y, COUNTS_Z, counts_model

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "svgp_ppl"
MODULES = sorted(PACKAGE.rglob("*.py"))

# The imports inside the package, exactly: from the mathematics up. Whoever adds an
# import adds it here, and sees what it costs.
MAY_IMPORT = {
    "rows": set(),
    "runtime": {"rows"},
    "checks": {"rows"},
    "datasets": set(),
    "pytrees": set(),
    "diagnostics": set(),
    "keys": set(),
    "linalg": {"rows"},
    "kernels": {"linalg", "pytrees"},
    "rounding": {"checks"},
    "inducing": {"checks", "kernels", "linalg", "rounding"},
    "features": {"checks", "kernels", "linalg", "pytrees", "rounding"},
    "variational": {"features", "kernels", "linalg", "rows"},
    "marginals": {"checks", "features", "linalg", "rows", "variational", "pytrees"},
    "latent": {"checks", "features", "marginals", "rows"},
    "process": {
        "features",
        "kernels",
        "latent",
        "linalg",
        "marginals",
        "runtime",
        "variational",
    },
    "expectations": {"linalg", "marginals", "rows"},
    "likelihoods": {"checks", "expectations", "linalg", "marginals", "pytrees"},
    "handlers": {"latent", "rows", "runtime", "variational"},
    "layer_noise": {"expectations", "handlers", "keys"},
    "plates": {"checks", "handlers"},
    "observations": {
        "checks",
        "expectations",
        "handlers",
        "latent",
        "likelihoods",
        "marginals",
        "rows",
        "runtime",
        "pytrees",
    },
    "primitives": {
        "checks",
        "expectations",
        "features",
        "handlers",
        "kernels",
        "keys",
        "latent",
        "layer_noise",
        "linalg",
        "observations",
        "plates",
        "process",
        "variational",
    },
    "inducing_origin": {"diagnostics", "handlers", "rows", "runtime"},
    "process_facts": {"diagnostics", "handlers", "observations", "runtime"},
    "elbo": {
        "handlers",
        "observations",
        "variational",
    },
    "deep": {"checks", "inducing", "latent", "linalg", "primitives"},
    "guides": {
        "checks",
        "handlers",
        "keys",
        "observations",
        "plates",
        "rows",
        "runtime",
        "variational",
    },
    "fitting": {
        "checks",
        "diagnostics",
        "elbo",
        "expectations",
        "features",
        "guides",
        "handlers",
        "inducing_origin",
        "process_facts",
        "kernels",
        "linalg",
        "observations",
        "plates",
        "prediction",
        "process",
        "rows",
        "runtime",
        "variational",
    },
    "prediction": {
        "checks",
        "diagnostics",
        "expectations",
        "guides",
        "handlers",
        "inducing_origin",
        "process_facts",
        "keys",
        "layer_noise",
        "linalg",
        "observations",
        "plates",
        "rows",
        "runtime",
    },
    "mcmc.samplers": {"linalg"},
    "mcmc.chains": {"mcmc.samplers", "rows", "runtime"},
    "mcmc.given": {"handlers"},
    "mcmc.sites": {"handlers", "linalg", "variational"},
    "mcmc.collapsed": {
        "expectations",
        "handlers",
        "latent",
        "likelihoods",
        "linalg",
        "marginals",
        "observations",
        "variational",
    },
    "mcmc.target": {
        "diagnostics",
        "guides",
        "handlers",
        "inducing_origin",
        "process_facts",
        "layer_noise",
        "mcmc.collapsed",
        "mcmc.given",
        "mcmc.sites",
        "observations",
        "plates",
        "runtime",
    },
    "mcmc.joint": {"handlers"},
    "mcmc.moving_window": {
        "checks",
        "guides",
        "handlers",
        "linalg",
        "mcmc.samplers",
        "mcmc.target",
        "plates",
        "rows",
        "runtime",
    },
    "mcmc.pathfinder": {
        "checks",
        "diagnostics",
        "linalg",
        "mcmc.joint",
        "mcmc.samplers",
        "mcmc.target",
        "rows",
        "runtime",
    },
    "mcmc.affine": {"linalg", "mcmc.target"},
    "mcmc.differences": {"mcmc.affine", "mcmc.target", "runtime"},
    "mcmc.laplace": {"mcmc.differences", "mcmc.target", "runtime"},
    "mcmc.curvature": {
        "mcmc.affine",
        "mcmc.differences",
        "mcmc.sites",
        "mcmc.target",
        "variational",
    },
    "mcmc.coupling": {"mcmc.laplace", "mcmc.target", "variational"},
    "mcmc.coordinates": {
        "fitting",
        "guides",
        "handlers",
        "mcmc.affine",
        "mcmc.coupling",
        "mcmc.curvature",
        "mcmc.joint",
        "mcmc.laplace",
        "mcmc.sites",
        "mcmc.target",
        "runtime",
        "variational",
    },
    "mcmc.starts": {
        "guides",
        "mcmc.affine",
        "mcmc.chains",
        "mcmc.coordinates",
        "mcmc.laplace",
        "mcmc.pathfinder",
        "mcmc.samplers",
        "mcmc.target",
        "runtime",
        "variational",
    },
    "mcmc.draws": {
        "diagnostics",
        "mcmc.chains",
        "mcmc.coordinates",
        "mcmc.target",
        "observations",
        "rows",
        "runtime",
    },
    "mcmc.importance": {
        "checks",
        "diagnostics",
        "fitting",
        "guides",
        "process_facts",
        "linalg",
        "mcmc.affine",
        "mcmc.chains",
        "mcmc.coordinates",
        "mcmc.draws",
        "mcmc.samplers",
        "mcmc.target",
        "rows",
        "runtime",
    },
    "mcmc.sample": {
        "checks",
        "diagnostics",
        "fitting",
        "guides",
        "process_facts",
        "linalg",
        "mcmc.chains",
        "mcmc.coordinates",
        "mcmc.draws",
        "mcmc.pathfinder",
        "mcmc.samplers",
        "mcmc.starts",
        "mcmc.target",
    },
    "mcmc.refit": {
        "checks",
        "diagnostics",
        "fitting",
        "guides",
        "handlers",
        "observations",
        "runtime",
    },
    "mcmc.hybrid": {
        "checks",
        "fitting",
        "guides",
        "mcmc.chains",
        "mcmc.sample",
        "mcmc.samplers",
        "prediction",
    },
    "plots": {"diagnostics", "fitting", "prediction"},
}

# Third-party packages that have one home.
HOMES = {
    "blackjax": {"mcmc"},
    "arviz": {"diagnostics"},
    "xarray": {"prediction"},
    "matplotlib": {"plots"},
    "optax": {"fitting", "mcmc"},
    "sklearn": {"mcmc"},
    "tqdm": {"runtime"},
    "threadpoolctl": {"linalg"},
}

LONGEST = 450
LONGEST_FUNCTION = 60
# Folders that count as one module: one idea that outgrew a file.
FOLDERS = (
    "datasets",
    "diagnostics",
    "expectations",
    "features",
    "fitting",
    "guides",
    "kernels",
    "likelihoods",
    "linalg",
    "observations",
    "plots",
    "prediction",
    "rows",
    "runtime",
    "variational",
    "mcmc.chains",
    "mcmc.samplers",
)


def room_of(name):
    """The folder that a module counts as, or its own name."""
    return next((f for f in FOLDERS if f"{name}.".startswith(f"{f}.")), name)


def name_of(path):
    """ "elbo", "mcmc.target", "mcmc.samplers", "kernels"; "" for __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return room_of(".".join(part for part in parts if part != "__init__"))


def imports(path):
    """Modules imported anywhere in a file, with what is taken from them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((node.module, alias.name) for alias in node.names)


def inside(path):
    """Names of the modules of the package that a file imports."""
    names = set()
    for module, taken in imports(path):
        if module == "svgp_ppl":
            names.add(taken)
        elif module.startswith("svgp_ppl."):
            names.add(room_of(module.removeprefix("svgp_ppl.")))
    return names - {name_of(path)}


def third_party(paths):
    """Name of a third-party package -> files that import it."""
    found = {}
    for path in paths:
        for module, _ in imports(path):
            top = module.split(".")[0]
            if top not in sys.stdlib_module_names and top not in ("svgp_ppl", "tests"):
                found.setdefault(top, set()).add(path)
    return found


# Where the name that is imported is not the one that is installed.
INSTALLED_AS = {"sklearn": "scikit-learn", "xdist": "pytest-xdist"}


def declared(extra=None):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"]
    if extra is not None:
        lines = project["optional-dependencies"][extra]
    return {re.match(r"[\w-]+", line).group() for line in lines}


# ------------------------------------------------------------------------ imports


def test_table_of_imports_is_the_code():
    found = {}
    for path in MODULES:
        name = name_of(path)
        if path.name == "__init__.py" and name not in FOLDERS:
            continue
        if name != "__main__":
            found.setdefault(name, set()).update(inside(path))
    for name, taken in found.items():
        assert name in MAY_IMPORT, f"{name} is new: add it to the table"
        extra = taken - MAY_IMPORT[name]
        assert not extra, f"{name} imports {extra}: is that the right way round?"
        unused = MAY_IMPORT[name] - taken
        assert not unused, f"{name} no longer imports {unused}: shorten the table"
    assert found.keys() == MAY_IMPORT.keys()


def test_imports_go_one_way():
    # CycleError, with the cycle in it, when they do not.
    order = list(TopologicalSorter(MAY_IMPORT).static_order())
    assert order.index("linalg") < order.index("kernels") < order.index("primitives")


def test_third_party_packages_have_one_home():
    found = third_party(MODULES)
    for package, homes in HOMES.items():
        places = {name_of(path).split(".")[0] for path in found[package]}
        assert places == homes, f"{package} is imported in {places}"


def test_bound_and_samplers_never_hear_of_kernels():
    offenders, rooms = [], {"elbo", "mcmc.chains", "mcmc.samplers"}
    for path in MODULES:
        if name_of(path) not in rooms:
            continue
        for module, taken in imports(path):
            # A library may name the surrogate of a tuning as it likes.
            is_ours = module.startswith("svgp_ppl")
            if is_ours and "kernel" in f"{module} {taken}".lower():
                offenders.append((path, module, taken))
    for room in rooms - {"elbo"}:  # which know neither models nor processes
        closure, waiting = set(), [room]
        while waiting:
            here = MAY_IMPORT[waiting.pop()] - closure
            closure |= here
            waiting += here
        others = closure - rooms - {"linalg", "rows", "runtime"}
        offenders += [(room, module) for module in sorted(others)]
    assert not offenders


def test_dependencies_are_declared_and_used():
    found = third_party(MODULES)
    # An adapter knows its kernels without importing it first; an extra.
    optional = {"tinygp", "pyarrow"}
    installed = {INSTALLED_AS.get(name, name) for name in found}
    assert installed - optional == declared()
    in_tests = third_party((ROOT / "tests").rglob("*.py"))
    # Only tests may import the experiments, which lie beside them.
    installed = {INSTALLED_AS.get(name, name) for name in in_tests} - {"benchmarks"}
    assert installed <= declared() | declared("test")


def test_lowest_versions_are_those_that_are_tested():
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = dict(line.split(">=") for line in lines["dependencies"])
    tested = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in tested if not line.startswith("#"))
    assert bounds.keys() <= tested.keys()
    for name, bound in bounds.items():
        rest = f"{tested[name]}.".removeprefix(f"{bound}.")
        assert not rest.strip("0."), f"{name}>={bound} is tested at {tested[name]}"


# -------------------------------------------------------------------------- names


def test_public_names_exist():
    offenders = []
    for path in MODULES:
        if path.name == "__main__.py":
            continue
        name = ".".join(("svgp_ppl", *path.relative_to(PACKAGE).with_suffix("").parts))
        module = importlib.import_module(name.removesuffix(".__init__"))
        if len(set(module.__all__)) != len(module.__all__):
            offenders.append((name, "__all__ names something twice"))
        if not module.__doc__:
            offenders.append((name, "has no docstring"))
        missing = [n for n in module.__all__ if getattr(module, n, None) is None]
        offenders += [(name, public) for public in missing]
    assert not offenders


def test_every_argument_has_a_name():
    """None is positional only; and an option after a star stays behind it."""
    functions = [
        (path.name, node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.Lambda)
    ]
    assert len(functions) > 1000
    assert not [(name, f.lineno) for name, f in functions if f.args.posonlyargs]


def test_what_programs_are_compiled_for_cannot_change():
    """Settings are keys of compiled programs: data classes are frozen."""
    thawed = []
    for path in MODULES:
        if path.name != "__main__.py":
            parts = ("svgp_ppl", *path.relative_to(PACKAGE).with_suffix("").parts)
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            thawed += [
                made
                for made in vars(module).values()
                if isinstance(made, type)
                and is_dataclass(made)
                and made.__module__.startswith("svgp_ppl")
                and not made.__dataclass_params__.frozen
            ]
    assert not thawed


def test_what_a_model_is_made_of_is_data_to_jax():
    """Values in a kernel, in features or in a likelihood may be traced."""
    for module in (gp.kernels, gp.features, gp.likelihoods):
        public = [getattr(module, name) for name in module.__all__]
        made = [c for c in public if isinstance(c, type) and is_dataclass(c)]
        final = [c for c in made if not c.__subclasses__()]
        assert len(final) >= 5
        opaque = [c for c in final if jax.tree_util.all_leaves([object.__new__(c)])]
        assert not opaque


def test_scripts_import_what_exists():
    offenders = []
    for folder in ("benchmarks", "notebooks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for module, taken in imports(path):
                if module.split(".")[0] != "svgp_ppl" or taken is None:
                    continue
                if not hasattr(importlib.import_module(module), taken):
                    offenders.append((path, taken))
    assert not offenders


def test_contract():
    names = """
        sparse_gp SparseGP Latent stack propagate observe Expected MarginalELBO
        AutoGaussian fit Fit sample fit_and_sample predict Prediction draw_functions
        inducing.kmeans inducing.greedy_variance inducing.grid inducing.subset
        kernels.RBF kernels.Matern12 kernels.Matern32 kernels.Matern52
        likelihoods.Gaussian likelihoods.HeteroscedasticGaussian likelihoods.Poisson
        likelihoods.Bernoulli likelihoods.StudentT likelihoods.AdditiveNoiseBernoulli
        likelihoods.AdditiveNoiseCategorical likelihoods.Softmax likelihoods.Warped
        likelihoods.GPRN
        mcmc.NUTS mcmc.HMC mcmc.Gibbs mcmc.EllipticalSlice mcmc.MCLMC mcmc.ChEES
        mcmc.SGLD mcmc.SGHMC
        variational.prior_kl
        diagnostics.ess diagnostics.ess_per_second diagnostics.psrf diagnostics.esjd
        diagnostics.report diagnostics.loo diagnostics.waic diagnostics.bfmi
        diagnostics.ess_per_gradient
        plots.function_band plots.inducing_inputs plots.bound
        plots.psrf plots.ess plots.joint plots.correlation plots.correlated_inputs
        plots.chain_bands plots.class_contours
    """
    for name in names.split():
        value = gp
        for part in name.split("."):
            value = getattr(value, part)
        assert value.__doc__, name


# --------------------------------------------------------------------------- size


def test_modules_are_short():
    lengths = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert not {path: n for path, n in lengths.items() if n > LONGEST}


def test_functions_are_read_in_one_go():
    found = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if ast.get_docstring(node):
                    lines -= node.body[0].end_lineno - node.body[0].lineno + 1
                found[f"{path.relative_to(PACKAGE)}:{node.name}"] = lines
    assert not {name: n for name, n in found.items() if n > LONGEST_FUNCTION}


# -------------------------------------------------------------- what importing does


def printed_by(code):
    """The words that code prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout.split()


def test_importing_changes_no_setting_and_makes_no_array():
    code = """
import jax, numpyro, blackjax
def settings():
    return {name: getattr(jax.config, name) for name in (
        "jax_enable_x64", "jax_default_matmul_precision", "jax_platforms",
        "jax_debug_nans", "jax_numpy_dtype_promotion")}
arrays, before = len(jax.live_arrays()), settings()
import svgp_ppl
print(len(jax.live_arrays()) - arrays, settings() == before, before["jax_enable_x64"])
"""
    assert printed_by(code) == ["0", "True", "False"]


def test_importing_leaves_figures_and_tables_to_those_who_use_them():
    """Half the time of an import, for scripts that fit and predict."""
    heavy = ["arviz", "matplotlib", "pandas", "scipy.stats", "sklearn", "xarray"]
    code = f"""
import sys
import svgp_ppl as gp
print(*[name for name in {heavy} if name in sys.modules], "plots" in dir(gp))
gp.plots.psrf
print("matplotlib" in sys.modules)
from svgp_ppl import *
plots.psrf
import warnings
warnings.simplefilter("error")  # an ArviZ that gives notice of its changes is no error
print(gp.diagnostics.to_arviz({{"x": [[1.0, 2.0]]}}) is not None)
"""
    assert printed_by(code) == ["True"] * 3
    with pytest.raises(AttributeError, match="no attribute 'plot'"):
        _ = gp.plot


# ------------------------------------------------------------------- leaked tracers


def small_values():
    return {
        "variance": jnp.asarray(1.2),
        "lengthscale": jnp.asarray(0.9),
        "f": jnp.full(5, 0.3),
    }


def test_bound_leaks_no_tracer():
    params = {
        "auto_f_loc": jnp.full(5, 0.3),
        "auto_f_scale_tril": jnp.eye(5),
        "variance_auto_loc": jnp.asarray(1.2),
        "lengthscale_auto_loc": jnp.asarray(0.9),
        "z": jnp.asarray(COUNTS_Z),
    }
    guide = gp.AutoGaussian(counts_model)
    handlers.seed(guide, random.key(0))(COUNTS_X, COUNTS_Y)
    bound = gp.MarginalELBO()

    def loss(params):
        return bound.loss(
            random.key(0), params, counts_model, guide, COUNTS_X, COUNTS_Y
        )

    with jax.checking_leaks():
        gradient = jax.jit(jax.grad(loss))(params)
    assert np.all(np.isfinite(gradient["z"]))


def test_log_density_leaks_no_tracer():
    data = (COUNTS_X, COUNTS_Y)
    target = Target(random.key(0), counts_model, data, {}, {})
    position = target.unconstrain(small_values(), target.data)
    with jax.checking_leaks():
        gradient = jax.jit(jax.grad(target.logdensity_fn))(position, target.data)
    assert np.all(np.isfinite(gradient["f"]))
