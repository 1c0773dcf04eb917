"""Chains side by side: in threads, or vectorised in one program."""

from typing import Any, Literal, get_args

from svgp_ppl.mcmc.samplers.sampler import tunes_together
from svgp_ppl.runtime.side_by_side import devices_of, on_one_cpu

__all__ = ["ChainMethod", "chain_method_of"]

ChainMethod = Literal["parallel", "vectorized"]


def chain_method_of(
    method: ChainMethod | None, sampler: Any, arrays: Any
) -> ChainMethod:
    """The method asked for; by default ``"parallel"`` if possible, on a CPU.

    Args:
        method: The method asked for, or None.
        sampler: The sampler.
        arrays: Positions and data.

    Raises:
        ValueError: There is no such method, or chains cannot be run in parallel here.
    """
    if method not in (None, *get_args(ChainMethod)):
        raise ValueError(
            f"chain_method must be one of {get_args(ChainMethod)}, and is {method!r}."
        )
    together = tunes_together(sampler)
    if method == "parallel":
        if together:
            raise ValueError(
                f"{type(sampler).__name__} tunes on all chains together, which have to "
                'be one program: drop chain_method="parallel".'
            )
        devices = devices_of(arrays)
        if len(devices) > 1:
            raise ValueError(
                f"the data are on {len(devices)} devices, which can run one program at "
                'a time: drop chain_method="parallel".'
            )
    if method is not None:
        return method
    return "parallel" if on_one_cpu(arrays) and not together else "vectorized"
