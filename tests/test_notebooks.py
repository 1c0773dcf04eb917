"""What is printed in the README, the pages and the notebooks runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jupytext
import numpy as np
import pytest

from svgp_ppl.expectations import variational_expectation
from svgp_ppl.marginals import Marginal
from tests.conftest import XLA_FLAGS

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "notebooks").glob("[0-9]*.py"))
PAGES = sorted(
    path for path in (ROOT / "docs").glob("*.md") if "{code-cell}" in path.read_text()
)

# Shown by every run on ArviZ 0.23, and by matplotlib without a screen.
IGNORED = ["-W", "ignore::FutureWarning", "-W", "ignore::UserWarning"]
# ArviZ's compare sorts in a way that pandas 3 announces the end of.
IGNORED += ["-W", "ignore:The inplace keyword:DeprecationWarning"]


def run(code: str, tmp_path: Path, **environment: str) -> str:
    """Run a script as a user would, in an empty folder, and return what it prints."""
    # The folder of the session: what one script has compiled serves the next.
    compiled = tmp_path.parent / "compiled"
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = {
        **os.environ,
        "MPLBACKEND": "agg",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        # Nothing here runs for long: most of the time goes into compilation.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": XLA_FLAGS,
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", *IGNORED, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def smaller(code: str, pattern: str, budget: int | str) -> str:
    """The code with a smaller budget; there must be something to replace."""
    code, count = re.subn(pattern, rf"\g<1>{budget}", code)
    assert count > 0, pattern
    return code


def made_up_data(folder):
    """Files where the notebooks would read or download the real ones."""
    rng = np.random.default_rng(0)
    np.savez(folder / "pines.npz", X=rng.uniform(size=(126, 2)))
    month = np.arange(360)
    co2 = 350 + month / 7 + 3 * np.sin(np.pi * month / 6) + rng.normal(size=360)
    dates = {"Year": 1988.0 + month // 12, "Month": 1.0 + month % 12}
    np.savez(folder / "mauna_loa.npz", CO2=co2, **dates)
    brood = rng.integers(40, size=90)
    chicks = {"BROOD": brood, "HEIGHT": 400 + 3 * brood, "YEAR": 95 + brood % 3}
    chicks |= {"LOCATION": brood % 15, "TICKS": rng.poisson(3 * (brood % 3 > 0))}
    np.savez(folder / "grouse_ticks.npz", **chicks)
    patients = {name: rng.integers(1, 12, 80) for name in ("nodes", "pgr", "size")}
    patients |= {"grade": rng.integers(1, 4, 80), "hormon": rng.integers(2, size=80)}
    patients |= {"age": rng.uniform(30, 80, 80), "rfstime": rng.uniform(50, 2000, 80)}
    patients["status"] = rng.integers(2, size=80)
    np.savez(folder / "breast_cancer.npz", **patients)
    grade = rng.integers(3, 9, size=200)
    measured = grade[:, None] + 3.0 * rng.normal(size=(200, 11))
    np.savez(folder / "wine_red.npz", X=measured, y=grade * 1.0)
    weather = {n: rng.uniform(5, 90, 153) for n in ("Ozone", "Solar.R", "Wind", "Temp")}
    weather["Ozone"][::4] = np.nan
    np.savez(folder / "air_quality.npz", **weather)
    for name in ("deaths", "pumps"):
        x, y = rng.uniform(9.0, 16.0, size=(2, 30))
        np.savez(folder / f"snow_{name}.npz", x=x, y=y)
    x, y = rng.uniform(9.0, 16.0, size=(2, 40))
    np.savez(folder / "snow_streets.npz", x=x, y=y, street=np.arange(40) // 4)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_runs_with_a_small_budget(script, tmp_path):
    made_up_data(tmp_path)
    budgets = r"(num_(?:steps|warmup|samples|draws) ?= ?)\d+"
    code = smaller(script.read_text(), budgets, 60)
    run(code, tmp_path, SVGP_PPL_DATA=str(tmp_path))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_and_notebook_hold_the_same_cells(script):
    notebook = jupytext.read(script.with_suffix(".ipynb"))
    cells = [
        [(cell.cell_type, cell.source) for cell in one.cells]
        for one in (jupytext.read(script), notebook)
    ]
    assert cells[0] == cells[1], f"run notebooks/execute.py {script.name}"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert any(
        "image/png" in output.get("data", {})
        for cell in code
        for output in cell.outputs
    )
    assert script.with_suffix(".ipynb").stat().st_size < 400_000


@pytest.mark.docs
def test_the_readme_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    code = smaller(code, r"(gp\.fit\(.* y)(?=\))", ", num_steps=60")
    code = smaller(code, r"(init=fit)", ", num_warmup=20, num_samples=20")
    assert "lengthscale" in run(code, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_runs_with_a_small_budget(page, tmp_path):
    cells = re.findall(r"```\{code-cell\}[^\n]*\n(.*?)```", page.read_text(), re.S)
    code = "\n".join(cells)
    code = re.sub(r"(num_(?:warmup|samples|steps)=)\d+", r"\g<1>20", code)
    run(code, tmp_path)


@pytest.mark.parametrize("precision", [64, 32], indirect=True)
def test_the_likelihood_to_copy_holds_where_f_is_known(precision):
    """The value is log p(y|m), and the slope in m is sign(y − m)/scale."""
    page = (ROOT / "docs" / "extending.md").read_text()
    cells = re.findall(r"```\{code-cell\}[^\n]*\n(.*?)```", page, re.S)[:2]
    names = {"__name__": __name__}
    exec("\n".join(cells).replace("numpyro.enable_x64()", ""), names)

    def value(mean, variance, y):
        marginal = Marginal(mean[None], variance[None])
        likelihood = names["LaplaceNoise"](0.5)
        return variational_expectation(likelihood, y[None], marginal)[0]

    value_and_slopes = jax.jit(jax.value_and_grad(value, (0, 1)))
    for variance in (0.0, 1e-35):
        for y in (0.0, 0.3, -2e6):
            arguments = map(jnp.asarray, (0.0, variance, y))
            found, slopes = value_and_slopes(*arguments)
            np.testing.assert_allclose(found, -abs(y) / 0.5, rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(slopes, (np.sign(y) / 0.5, 0.0), rtol=1e-6)
