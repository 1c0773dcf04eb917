"""Likelihoods whose rows depend on each other, of which no expectation is taken.

E log p(y_n | f_n) is an integral over f_n alone, at the marginal of its row. With a
likelihood that centres f, or sums it over rows, y_n depends on other rows as well, and
the nodes are no draws of those together.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from svgp_ppl.checks import is_concrete
from svgp_ppl.observations.expected import Expected, observe_sites

__all__ = ["require_rows_apart"]

# Operations that may move numbers between rows; and those that do so unless all their
# arrays keep the axes of rows. With no others a likelihood need not be tried.
_MOVING = (
    *("cond", "conv", "cum", "dot", "dynamic_update", "fft", "gather", "pad", "rev"),
    *("scan", "scatter", "sort", "triangular", "while"),
)
_CUTTING = ("arg", "concatenate", "dynamic_slice", "reduce_", "slice", "split")


def require_rows_apart(trace: dict[str, dict]) -> None:
    """Raise if the likelihood of a row depends on f at another row.

    Args:
        trace: Sites of the model, whose values may be traced.
    """
    for name, expected in observe_sites(trace).items():
        if not _is_ours(expected.likelihood) and _mixes_rows(expected):
            raise ValueError(
                f"the likelihood of site '{name}' at a row depends on f at other rows "
                "or nodes, as f - f.mean() or jnp.cumsum(f) do: f is [..., N], of "
                "which every entry is integrated out by itself. Sums and differences "
                "over rows are those of the latent, f(x1) - f(x2), or of an area "
                "(gp.features.integral)."
            )


def _is_ours(likelihood: Any) -> bool:
    return type(likelihood).__module__.startswith(f"{__name__.split('.')[0]}.")


def _mixes_rows(expected: Expected) -> bool:
    """Whether f at the first row of the first of two nodes moves another row or node.

    Values that are traced are ones here: what depends on a row does so at any values.
    """
    shape = 2, *expected.latent.shape

    def values(f) -> list:
        leaves = jax.tree.leaves(expected.likelihood(f))
        return [leaf for leaf in leaves if jnp.shape(leaf)[:2] == shape[:2]]

    try:
        traced = jax.make_jaxpr(values)(jnp.zeros(shape))
    except (TypeError, ValueError):  # it takes no nodes, as one with closed forms may
        return False
    if not _may_move(traced.jaxpr, (2, shape[1])):
        return False
    if any(jnp.issubdtype(a.dtype, jax.dtypes.extended) for a in traced.consts):
        return False
    consts = [a if is_concrete(a) else np.ones(a.shape, a.dtype) for a in traced.consts]
    run = jaxpr_as_fun(traced.replace(consts=consts))
    with jax.ensure_compile_time_eval():
        f = jnp.asarray(np.sin(np.arange(1.0, 1.0 + np.prod(shape))).reshape(shape))
        first = jnp.zeros(shape).at[0, 0].set(1.0)
        moved = jax.jit(lambda f, first: jax.jvp(run, [f], [first])[1])(f, first)
        for slope in moved:
            if slope.dtype == jax.dtypes.float0:
                continue
            of_others = np.asarray(slope).reshape(2 * shape[1], -1)[1:]
            if np.any(np.nan_to_num(of_others) != 0):
                return True
    return False


def _may_move(jaxpr: Any, rows: tuple[int, int]) -> bool:
    for operation in jaxpr.eqns:
        name = operation.primitive.name
        shapes = [v.aval.shape for v in operation.outvars]
        shapes += [v.aval.shape for v in operation.invars if v.aval.shape]
        is_kept = all(shape[:2] == rows for shape in shapes)
        inner = [getattr(p, "jaxpr", p) for p in operation.params.values()]
        if (
            name.startswith(_MOVING)
            or (name.startswith(_CUTTING) and not is_kept)
            or any(_may_move(each, rows) for each in inner if hasattr(each, "eqns"))
        ):
            return True
    return False
