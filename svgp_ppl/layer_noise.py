"""Standard normals of layers, of one run of a model or of several that belong together.

An average over the noise of S runs, (1/S) Σ_s g(ε_s) with ε_s ~ N(0, I), is nearer its
expectation where the ε_s are spread out evenly: at Sobol' points u_s, one dimension for
every output of every layer, with a digital shift of each datum (L'Ecuyer & Lemieux
2002),

    ε_sn = Φ⁻¹(u_s ⊕ Δ_n),  Δ_n uniform on the unit cube, ⊕ XOR of binary digits,

each of them a draw of N(0, I), so that the average has the same expectation. The ε_s of
two data are spread in the same way: this is for averages at each datum, not for draws.
"""

import math

import jax.numpy as jnp
from jax import random
from jaxtyping import Array
from numpyro.handlers import Messenger

from svgp_ppl.expectations.nodes import normals_at, sobol_points
from svgp_ppl.handlers import enclosing
from svgp_ppl.keys import random_key

__all__ = ["evenly_spread", "layer_noise"]


class evenly_spread(Messenger):
    """A NumPyro handler: the noise of layers in one of S runs that belong together.

    Args:
        fn: The model.
        key: Random key of the shifts, the same in all of the runs.
        number: Which of them this is, from zero.
        total: S.
    """

    def __init__(self, fn, key, number, total: int):
        self.key, self.number, self.total = key, number, total
        self.num_used = 0  # dimensions, by the layers so far
        super().__init__(fn)

    def __enter__(self):
        """Begin a run, each with the same noise."""
        self.num_used = 0
        return super().__enter__()

    def next_layer(self, shape: tuple[int, ...], dtype) -> Array:
        """The noise of the next layer, [N] or [N, Q]."""
        start, self.num_used = self.num_used, self.num_used + math.prod(shape[1:])
        points = jnp.asarray(sobol_points(self.total, self.num_used)[:, start:])
        key = random.fold_in(self.key, start)
        shift = random.bits(key, (*shape[:1], points.shape[1]), points.dtype)
        return normals_at(points[self.number] ^ shift, dtype).reshape(shape)


def layer_noise(shape: tuple[int, ...], dtype) -> Array | None:
    """Draws of N(0, 1) for a layer, [N] or [N, Q]; None if there is no key for them."""
    for handler in enclosing(evenly_spread):
        return handler.next_layer(shape, dtype)
    key = random_key()
    return None if key is None else random.normal(key, shape, dtype)
