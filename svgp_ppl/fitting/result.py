"""What a fit returns, in memory and as a file."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.svi import SVIState

from svgp_ppl.checks import warn_of_other_precision
from svgp_ppl.diagnostics.findings_of_fits import moving_bound
from svgp_ppl.diagnostics.fitted import Fitted
from svgp_ppl.diagnostics.trend import last_bound
from svgp_ppl.guides.start import default_guide
from svgp_ppl.prediction.predict import Prediction, predict
from svgp_ppl.runtime.checkpoints import Stored, read, write
from svgp_ppl.runtime.nested import flattened, rebuilt

__all__ = ["Fit", "NonFiniteBoundError"]


@dataclass(frozen=True, eq=False)  # arrays have no single truth value
class Fit:
    """A fitted guide.

    Attributes:
        params: Values of the ``param`` sites of model and guide, by name.
        losses: Negative bound in nats at every step, [num_steps].
        guide: The guide that they belong to.
        state: NumPyro's ``SVIState`` after the last step, to continue from.
        seed: Determines the order of minibatches.
        stopped_early: Whether a plateau ended the fit before ``num_steps``.
        compile_seconds: Time for tracing and compilation.
        seconds: Time for the steps.
        unfreeze_at: Parameter -> step at which it was, or will be, unfrozen.
        model: The model that was fitted; None where it is not known, after ``load``.
        inducing_origin: Digests of the arguments that the model computes z from.
        input_columns: Columns of the tables that each process is called with.
        kernels: Classes of the kernel and of the inducing features of each process.
        inducing_digests: Digests of inducing inputs that are constants, by process.
        has_earlier_data: Whether it stands for data that are not among its arguments,
            as what ``update`` returns does.
        interrupted: Whether a keyboard interrupt ended it; a file does not say.

    Example:
        >>> fitted.losses.shape, sorted(fitted.params)
        ((200,), ['auto_f_loc', 'auto_f_scale_tril', 'lengthscale_auto_loc'])
    """

    params: dict[str, Any]
    losses: np.ndarray
    guide: Callable
    state: SVIState | Stored
    seed: int = 0
    stopped_early: bool = False
    compile_seconds: float = 0.0
    seconds: float = 0.0
    unfreeze_at: Mapping[str, int] = field(default_factory=dict)
    model: Callable | None = None
    inducing_origin: Mapping[str, str] = field(default_factory=dict)
    input_columns: Mapping[str, list[list[str]]] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    inducing_digests: Mapping[str, str] = field(default_factory=dict)
    has_earlier_data: bool = False
    interrupted: bool = False

    def __repr__(self) -> str:
        losses = np.asarray(self.losses, np.float64)
        bound = f"{last_bound(losses):.3f}" if len(losses) else "none"
        steps = f"{len(self.losses)} steps" + ", stopped early" * self.stopped_early
        text = f"Fit({steps}, bound {bound} nats, params: {', '.join(self.params)})"
        findings = moving_bound(Fitted(losses))
        return "\n  ".join([text, *(finding.what for finding in findings)])

    def predict(
        self,
        *args,
        key=None,
        num_draws: int = 100,
        chunk_size: int | None = None,
        **kwargs,
    ) -> dict[str, Prediction]:
        """``gp.predict`` of the model that was fitted, at other arguments.

        Args:
            *args: Arguments of the model at the new inputs, without y.
            key: Random key; only needed when the guide or a deep model draws.
            num_draws: Number of such draws.
            chunk_size: Inputs projected at a time; chosen automatically if None.
            **kwargs: Keyword arguments of the model.

        Returns:
            Site name -> :class:`~svgp_ppl.Prediction`.

        Raises:
            ValueError: The model is not known, after ``load`` without it; or what
                ``gp.predict`` refuses.

        Example:
            >>> low, high = fitted.predict(x_new)["y"].interval(0.9)
        """
        if self.model is None:
            raise ValueError(
                "this fit does not know its model: gp.Fit.load(path, guide, model), or "
                "gp.predict(model, fit, ...)."
            )
        options: Any = {"key": key, "num_draws": num_draws, "chunk_size": chunk_size}
        return predict(self.model, self, *args, **options, **kwargs)

    def save(self, path: str | os.PathLike) -> None:
        """Write everything but the guide to a file, without pickle.

        A file of that name is replaced atomically: it is never seen half written.

        Example:
            >>> fitted.save("coal.npz")
            >>> fitted = gp.Fit.load("coal.npz", gp.AutoGaussian(model))
        """
        record = {name: getattr(self, name) for name in _RECORDED}
        record["params"], layouts = flattened(self.params)
        rebuilt(record["params"], layouts)  # or it could not be loaded
        record["layouts"] = json.dumps(layouts)
        record["precision"] = jnp.result_type(float).name
        for name in _OF_MODEL:
            record[name] = json.dumps(dict(getattr(self, name)))
        write(path, "fit", record, self.state)

    @staticmethod
    def load(
        path: str | os.PathLike,
        guide: Callable | None = None,
        model: Callable | None = None,
    ) -> "Fit":
        """Read a fit, for ``predict``, ``sample(init=...)`` and ``fit(init=...)``.

        Args:
            path: File that :meth:`save`, or ``fit(checkpoint=...)``, has written.
            guide: The guide that was fitted, or one constructed in the same way; by
                default that of a ``fit`` without one, ``AutoGaussian(model)``.
            model: The model, for :meth:`predict`, and for a report on a fit whose guide
                was written by hand.

        Raises:
            ValueError: It is not such a file, or there is neither guide nor model.
        """
        if guide is None:
            if model is None:
                raise ValueError(
                    "a file of a fit has no code: load(path, guide, model), or "
                    "load(path, model=model) for a fit without a guide of your own."
                )
            guide = default_guide(model)
        record, state = read(path, "fit")
        layouts = json.loads(record.pop("layouts", "{}"))
        for name in _OF_MODEL:
            record[name] = json.loads(record.pop(name, "{}"))
        params = rebuilt(record.pop("params"), layouts)
        params = jax.tree.map(jnp.asarray, params)
        precision = record.pop("precision", "")
        warn_of_other_precision(f"the fit in {path}", precision)
        params = jax.tree.map(
            lambda a: a.astype(float) if a.dtype.name == precision else a, params
        )
        steps = record.get("unfreeze_at", {})
        record["unfreeze_at"] = {name: int(step) for name, step in steps.items()}
        return Fit(**record, params=params, guide=guide, state=state, model=model)


_RECORDED = (
    "params",
    "losses",
    "seed",
    "stopped_early",
    "compile_seconds",
    "seconds",
    "unfreeze_at",
    "has_earlier_data",
)
_OF_MODEL = ("inducing_origin", "input_columns", "kernels", "inducing_digests")


class NonFiniteBoundError(FloatingPointError):
    """The bound is NaN or infinite; ``fit`` holds the last finite state.

    ``fit`` is None when there is no such state: the bound is not finite at the start.
    """

    def __init__(self, message: str, fit: Fit | None):
        super().__init__(message)
        self.fit = fit
