"""Mutants of the code: what share of them do the default tests kill?

    pip install cosmic-ray
    python benchmarks/reliability/mutants.py [--each 8] [--seed 0] [--only latent elbo]
    python benchmarks/reliability/mutants.py --table [--seed 0]

Cosmic Ray lists every small change of a module (another operator, number, comparison
or truth value; a loop not entered, a decorator removed). A sample of them, of equal
size for each part of the package, is applied one at a time to a copy of the
repository, and the tests of that part are run until the first failure. Annotations
and Cosmic Ray's variants of ``|`` are left out: they are equivalent. So is what Python
cannot compile, such as ``{//rest}`` for ``{**rest}``: any test would kill it.

Each verdict is written to ``mutants.json`` as it comes, and what stands there is not
run again: a larger sample begins with the smaller one, and the sample of another seed
has none of the mutants of those before. A mutant is killed by a test that fails, not
by its time: one that uses more than ``--seconds`` of the processor, or twice as many
by the clock, is a verdict of its own, "timeout". Of a survivor the file holds, written
by hand, why it is equivalent ("equivalent") or which test was added for it ("killed
since"); a test of another part that kills it is said there to be one "which was not
run". Of a timeout it holds why it never ends ("reason"): whoever runs the tests will
notice, and it counts neither as killed nor as a survivor.

The processes are forks of one that has imported everything but the package: Linux.
"""

import argparse
import contextlib
import difflib
import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_suffix(".json")

# A part: its modules, and the tests that are to kill its mutants, the quick ones first.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "latent": (("latent.py",), ("identities", "layers", "errors")),
    "marginals": (
        ("marginals.py", "observations/residual.py"),
        ("identities", "residual", "inducing", "sharing", "features", "coordinates"),
    ),
    "variational": (
        ("variational/*.py",),
        (
            "identities",
            "projection",
            "sites",
            "own_family",
            "guides",
            "sample_paths",
            "coordinates",
        ),
    ),
    "linalg": (("linalg/*.py",), ("linalg", "lapack", "projection")),
    "expectations": (
        ("expectations/*.py",),
        ("expectations", "wide_marginals", "predictive", "likelihoods"),
    ),
    "elbo": (
        ("elbo.py", "observations/expected.py"),
        ("elbo", "masks", "missing", "errors", "nothing_silent", "identities"),
    ),
    "predict": (
        ("prediction/*.py",),
        (
            "results",
            "averages",
            "checking",
            "predict",
            "sample_paths",
            "nothing_silent",
        ),
    ),
    "target": (
        ("mcmc/target.py", "mcmc/coordinates.py"),
        ("coordinates", "sample", "deep", "stochastic"),
    ),
    "gibbs": (("mcmc/samplers/gibbs.py",), ("samplers", "sample")),
    "hmc": (("mcmc/samplers/hmc.py",), ("samplers", "tuning", "sample")),
    "tuning": (("mcmc/samplers/tuning.py",), ("tuning", "samplers")),
    "mixing": (("diagnostics/mixing.py",), ("diagnostics", "report", "checking")),
    "likelihoods": (
        ("likelihoods/*.py",),
        (
            "likelihoods",
            "more_likelihoods",
            "predictive",
            "noisy_labels",
            "regression_network",
            "warped",
            "wide_marginals",
        ),
    ),
    "kernels": (("kernels/*.py",), ("kernels", "spectral", "linalg")),
    "natural_gradient": (
        ("fitting/natural_gradient.py",),
        ("natural_gradient", "schedules", "optimizers"),
    ),
    "minibatches": (("fitting/minibatches.py",), ("minibatches", "errors")),
    "checkpoints": (("runtime/checkpoints.py",), ("checkpoints", "sample_checkpoints")),
    "guides": (
        ("guides/*.py",),
        ("guides", "sites", "own_family", "errors", "nothing_silent", "deep"),
    ),
    "model": (
        ("handlers.py", "primitives.py", "plates.py", "process.py"),
        ("numpyro", "sharing", "masks", "errors", "nothing_silent", "elbo", "sample"),
    ),
    "deep": (("deep.py", "layer_noise.py"), ("layers", "deep", "errors")),
    "inducing": (
        ("inducing.py", "inducing_origin.py", "process_facts.py"),
        ("inducing", "inducing_origin", "process_facts", "errors"),
    ),
    "observations": (
        ("observations/chunks.py", "observations/missing.py", "observations/obs*.py"),
        ("missing", "masks", "chunks", "checking", "loo", "incomplete"),
    ),
    "features": (("features/*.py",), ("features", "features_in_use", "errors")),
    "fits": (
        ("fitting/[cfprs]*.py", "fitting/optimizers.py"),
        (
            "fit",
            "schedules",
            "checkpoints",
            "streaming",
            "errors",
            "nothing_silent",
            "optimizers",
        ),
    ),
    "chains": (
        ("mcmc/chains/*.py", "mcmc/draws.py", "mcmc/sample.py", "mcmc/sites.py"),
        ("chains", "chain_method", "sample_checkpoints", "sample", "coordinates"),
    ),
    "starts": (
        ("mcmc/starts.py", "mcmc/laplace.py", "mcmc/pathfinder.py", "mcmc/[acj]*.py"),
        ("starts", "coordinates", "sample"),
    ),
    "corrections": (
        ("mcmc/importance.py", "mcmc/refit.py", "mcmc/moving_window.py"),
        ("importance", "refit", "moving_window"),
    ),
    "samplers": (
        ("mcmc/samplers/[cmns]*.py",),
        ("samplers", "stochastic", "tuning", "sample", "errors"),
    ),
    "reports": (
        ("diagnostics/[acfgkprt]*.py", "fitting/assessment.py", "fitting/obs*.py"),
        ("report", "report_fit", "reports_on_fits", "loo", "diagnostics", "hybrid"),
    ),
    "programs": (
        ("runtime/compilation.py", "runtime/[dins]*.py", "pytrees.py", "keys.py"),
        ("compilation", "pytrees", "nested_params", "indices", "sharing"),
    ),
    "rows": (("rows/*.py",), ("arrow", "batches", "minibatches", "sharding")),
}


def mutations(modules: tuple[str, ...]) -> Iterator[Any]:
    """All changes that Cosmic Ray knows for these modules, annotations aside."""
    import cosmic_ray.plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.work_item import MutationSpec

    paths = sorted(p for pattern in modules for p in (ROOT / "svgp_ppl").glob(pattern))
    for path in paths:
        tree = get_ast_from_path(path)
        for name in cosmic_ray.plugins.operator_names():
            operator = cosmic_ray.plugins.get_operator(name)
            if operator.arguments() or "BitOr" in name:
                continue
            places = (
                (node, start, end)
                for node in ast_nodes(tree)
                for start, end in operator().mutation_positions(node)
            )
            for occurrence, (node, start, end) in enumerate(places):
                if not is_annotation(node):
                    relative = path.relative_to(ROOT)
                    yield MutationSpec(str(relative), name, occurrence, start, end)


def is_annotation(node: Any) -> bool:
    """Whether the node of Parso's tree stands in an annotation."""
    while node is not None:
        above = node.parent
        if node.type == "tfpdef" or (
            above is not None
            and (
                (above.type == "funcdef" and node is above.annotation)
                # ": int = 3" is one node, and 3 no annotation.
                or (above.type == "annassign" and node is above.children[1])
            )
        ):
            return True
        node = above
    return False


def mutated(mutation: Any) -> str:
    """The text of the module with the change."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    operator = cosmic_ray.plugins.get_operator(mutation.operator_name)()
    text = mutation.module_path.read_text()
    return mutate_code(text, operator, mutation.occurrence)


def is_program(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # "is" with a literal
        try:
            compile(text, "", "exec")
        except SyntaxError:
            return False
    return True


def difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), lineterm="", n=2
    )
    return "\n".join(list(lines)[2:])


def import_everything_else() -> None:
    """What the tests import, but for the package; no thread of JAX is started by it."""
    import arviz  # noqa: F401
    import beartype  # noqa: F401
    import jax
    import jax.experimental.pallas  # noqa: F401
    import jaxtyping  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import numpyro.contrib.control_flow
    import numpyro.infer.autoguide  # noqa: F401
    import optax  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.gaussian_process  # noqa: F401


def run_pytest(files: list[str]) -> int:
    import pytest

    quick = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
    imported = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # before, on purpose
    return pytest.main([*quick, *imported, *files])


def run_tests(files: list[str], seconds: int, output: Path) -> tuple[str, str]:
    """Run test files in a fork, until the first failure.

    Returns:
        The verdict, and the test that failed.
    """
    child = os.fork()
    if not child:
        code = 100  # an error of this file: nothing of it may reach the parent's code
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 10))
            with open(output, "wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            code = int(run_pytest(files))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    status = wait(child, 2 * seconds)
    found = re.findall(r"^(?:FAILED|ERROR) (\S+)", output.read_text(), re.MULTILINE)
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timeout", ""
    if status == 100:
        raise RuntimeError(output.read_text())
    verdict = {0: "survived", 1: "killed", 2: "killed"}.get(status, f"status {status}")
    return verdict, found[-1] if found else ""


def wait(child: int, seconds: float) -> int:
    """The exit code of a child, and the end of its group: -SIGKILL if it waits."""
    end, status = time.monotonic() + seconds, None
    while status is None and time.monotonic() < end:
        pid, raw = os.waitpid(child, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(raw)
        else:
            time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what its tests may have left running
    if status is None:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status


def run_part(name: str, options: Any, tree: Path, verdicts: dict[str, Any]) -> None:
    """Mutate one part; write each verdict as it comes."""
    modules, tests = PARTS[name]
    pool = list(mutations(modules))
    seed = options.seed
    random.Random(seed).shuffle(pool)
    new = (m for m in pool if verdicts.get(key_of(m), {}).get("seed", seed) == seed)
    programs = ((m, text) for m in new if is_program(text := mutated(m)))
    for mutation, after in itertools.islice(programs, options.each):
        path, key = mutation.module_path, key_of(mutation)
        if key in verdicts:
            continue
        quick = sorted(tests, key=lambda test: test != path.stem)  # its own ones first
        files = [f"tests/test_{test}.py" for test in quick]
        before, stamp = path.read_text(), path.stat()
        path.write_text(after)
        try:
            verdict, test = run_tests(files, options.seconds, tree / "output")
        finally:
            path.write_text(before)  # with its time: what is compiled stays valid
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        seconds = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        verdicts[key] = {
            "part": name,
            "of": len(pool),
            "seed": seed,
            "verdict": verdict,
            "test": test,
            "diff": difference(before, after),
        }
        options.results.write_text(json.dumps(verdicts, indent=1) + "\n")
        print(name, verdict, key, test, f"{seconds:.0f} s so far", flush=True)


def key_of(mutation: Any) -> str:
    return f"{mutation.module_path}:{mutation.operator_name}:{mutation.occurrence}"


def table(verdicts: dict[str, Any]) -> str:
    """Killed, equivalent and surviving mutants of each part, then each survivor."""
    lines = ["part              of  mutants  killed  equivalent  survived  other"]
    total, now, at_once = [0] * 5, [], []
    for part in PARTS:
        of = [v for v in verdicts.values() if v["part"] == part]
        if not of:
            continue
        killed = sum(v["verdict"] == "killed" or "killed since" in v for v in of)
        equal = sum("equivalent" in v for v in of)
        survived = sum(is_survivor(v) for v in of)
        counts = [len(of), killed, equal, survived]
        counts.append(len(of) - sum(counts[1:]))
        total = [a + b for a, b in zip(total, counts, strict=True)]
        size = of[-1]["of"]
        lines.append(row(part, size, counts))
        counted = sum("equivalent" not in v and "reason" not in v for v in of)
        weight = size * counted / len(of)
        now.append((weight, killed, counted))
        at_once.append((weight, sum(map(was_killed, of)), counted))
    lines += [
        row("all", "", total),
        "of the mutants that are not equivalent are killed",
        f"now:                    {shares(now)}",
        f"before tests were added {shares(at_once)}",
    ]
    for key, verdict in verdicts.items():
        if verdict["verdict"] != "killed":
            why = [
                f"{word}: {verdict[word]}"
                for word in ("equivalent", "killed since", "reason")
                if word in verdict
            ]
            lines += ["", f"{verdict['verdict']} {key}", *why, verdict["diff"]]
    return "\n".join(lines)


def shares(parts: list[tuple[float, int, int]]) -> str:
    """The share that is killed, by (weight, killed, counted) of each part.

    Once of the sample, in which all parts are of equal size; and once of the package.
    After tests were added for its survivors, a sample says nothing of other mutants:
    of those only the share before, of the newest sample, is an estimate.
    """
    parts = [part for part in parts if part[2]]
    # Stratified: of part h, with N_h mutants of which the share e_h is not equivalent,
    # k_h of n_h are killed. With weights w_h = N_h e_h / Σ N_h e_h the share is
    # Σ w_h k_h/n_h, and its variance Σ w_h² p_h (1 − p_h)/n_h at p_h =
    # (k_h + 1)/(n_h + 2): from a part whose mutants are all killed it is not zero.
    total = sum(weight for weight, _, _ in parts)
    share = sum(weight / total * k / n for weight, k, n in parts)
    smooth = [(weight / total, (k + 1) / (n + 2), n) for weight, k, n in parts]
    error = sum(w**2 * p * (1 - p) / n for w, p, n in smooth) ** 0.5
    # Every part alike: the same with equal weights.
    killed, counted = (sum(part[i] for part in parts) for i in (1, 2))
    equal = killed / counted
    spread = (equal * (1 - equal) / counted) ** 0.5
    return (
        f"{equal:.1%} ± {spread:.1%} of the sample, "
        f"{share:.1%} ± {error:.1%} of the package"
    )


def row(part: str, size: Any, counts: list[int]) -> str:
    return f"{part:16}{size:>5}" + "{:9}{:8}{:12}{:10}{:7}".format(*counts)


def is_survivor(verdict: dict[str, Any]) -> bool:
    is_explained = "equivalent" in verdict or "killed since" in verdict
    return verdict["verdict"] == "survived" and not is_explained


def was_killed(verdict: dict[str, Any]) -> bool:
    by_others = verdict.get("killed since", "").endswith("not run")
    return verdict["verdict"] == "killed" or by_others


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--each", type=int, default=8, help="mutants of each part")
    parser.add_argument("--seed", type=int, help="of the sample; of a table: only it")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=int, default=400, help="of one mutant")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="show what is known")
    options = parser.parse_args()
    options.results = options.results.absolute()
    path = options.results
    verdicts = json.loads(path.read_text()) if path.exists() else {}
    if not options.table:
        options.seed = options.seed or 0
        import_everything_else()
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            subprocess.run(["git", "clone", "-q", ROOT, tree], check=True)
            os.chdir(tree)  # modules are named from here
            os.environ["PYTHONPATH"] = str(tree)
            sys.path.insert(0, str(tree))
            for name in options.only:
                run_part(name, options, tree, verdicts)
    shown = {k: v for k, v in verdicts.items() if options.seed in (None, v["seed"])}
    print(table(shown))


if __name__ == "__main__":
    main()
