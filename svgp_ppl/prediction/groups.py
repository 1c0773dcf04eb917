"""Groups of an ArviZ object, from the model run at every draw of v and θ."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from svgp_ppl.checks import require_count, require_key
from svgp_ppl.diagnostics import add_groups, axes_of, group, to_arviz
from svgp_ppl.diagnostics.kept import Kept, is_arviz, known_of
from svgp_ppl.guides.fitted import Guide
from svgp_ppl.handlers import is_inducing, is_layer
from svgp_ppl.inducing_origin import require_same_z
from svgp_ppl.observations import expected_of, is_latent
from svgp_ppl.observations.observed import (
    Observed,
    data_of,
    draw_of,
    has_data,
    known_part,
    known_rows,
    plate_axes,
)
from svgp_ppl.prediction.posterior import Prior, Samples, take_posterior
from svgp_ppl.prediction.posterior_model import (
    ROWS_AT_A_TIME,
    Draws,
    PosteriorModel,
    every_draw,
)
from svgp_ppl.process_facts import ProcessFacts, require_same_processes
from svgp_ppl.runtime.nested import flattened

__all__ = ["Groups", "latent_values"]

# Draws of a fit: as many as a short run of a sampler keeps.
_DRAWS_OF_FIT = 1000


class _Facts(NamedTuple):
    """Shapes, axes and roles of the sites of a run."""

    shapes: dict[str, tuple[int, ...]]
    plates: dict[str, tuple[str, ...]]
    whitened: list[str]
    params: list[str]
    data: list[str]


class Groups:
    """The model with its arguments, run at every draw of v and θ.

    Args:
        key: Random key.
        model: The model.
        posterior: As for ``gp.posterior_predictive``, or the prior.
        args: Arguments of the model.
        kwargs: Its keyword arguments.
        num_draws: Number of draws of a fit or of the prior.
        params: Values of ``param`` sites, for a dict of samples.
        add_to: An ArviZ object to which the groups are added, or None.

    Attributes:
        data: The data among the arguments, by site.
    """

    def __init__(self, key, model, posterior, args, kwargs, num_draws, params, add_to):
        require_key(key)
        _require_arviz(add_to)
        key_posterior, key_run = random.split(key)
        self._add_to, self._drawn, self._like = add_to, False, posterior
        if isinstance(posterior, Prior):
            taken, self._shape = posterior, (1, num_draws)
        else:
            taken = take_posterior(posterior, params)
            require_same_z(posterior, model, args, kwargs)
            self._shape = _chains_and_draws(posterior, taken, num_draws)
        if isinstance(taken, Guide):
            taken = _draws_of_guide(
                key_posterior, model, taken, args, kwargs, self._shape[1]
            )
            self._drawn = True
        self._posterior = taken
        self._runs = PosteriorModel(model, taken, args, kwargs, key_run)
        self._runs.require_fit()
        require_same_processes(posterior, self._runs.facts.processes)
        self._facts = self._runs.look(self._facts_of)
        self.data = self._data()
        used = {n: v for n, v in taken.params.items() if n in self._facts.params}
        self._frozen, self._layouts = flattened(used)

    def _facts_of(self, sites: dict[str, dict]) -> _Facts:
        given = () if isinstance(self._posterior, Prior) else self._posterior.values
        kept = {
            name: site
            for name, site in sites.items()
            if site["type"] in ("sample", "deterministic") and not is_layer(site)
        }
        return _Facts(
            shapes={name: jnp.shape(site["value"]) for name, site in kept.items()},
            plates=plate_axes(sites),
            whitened=[name for name, site in kept.items() if is_inducing(site)],
            params=[n for n, site in sites.items() if site["type"] == "param"],
            data=[
                name
                for name, site in kept.items()
                if _is_data(site) or (is_latent(site) and given and name not in given)
            ],
        )

    def _data(self) -> dict[str, Observed]:
        """The data among the arguments, which are the same at every draw."""
        found = self._runs.over_draws(
            every_draw(1),
            lambda sites, key: data_of(sites),
            ("data",),
            batch_size=1,
            runs_once=True,
        )
        return jax.tree.map(lambda leaf: leaf[0], jax.device_get(found))

    def draw(self, sites: dict[str, dict], key) -> dict[str, jax.Array]:
        """New data at every observed site, and at sites that the posterior lacks."""
        names = self._facts.data
        return {
            n: draw_of(sites[n], k)
            for n, k in zip(names, random.split(key, len(names)))
        }

    @property
    def has_layers(self) -> bool:
        """Whether the model draws layers."""
        return self._runs.facts.has_layers

    def over_draws(
        self, what: str, function: Callable, noise: tuple[int, int] | None = None
    ):
        """``function(sites, key)`` at every draw, leaves [chains, draws, ...].

        Args:
            what: What determines the function.
            function: Of the trace of the model and a key.
            noise: Number of a draw of the fixed noise, which is then the same at every
                draw of the posterior, and how many there are; None for one at each.
        """
        num_draws = self._shape[0] * self._shape[1]
        rows = min(max(self._runs.num_data.values()), ROWS_AT_A_TIME)
        number, num_noise_draws = (None, None) if noise is None else noise
        given = () if number is None else (jnp.asarray(number),)

        def choose(key, *number) -> Draws:
            draws = every_draw(num_draws)(key)
            if not number:
                return draws
            # Of a number that is no draw's, nor that of every_draw.
            run_key = random.fold_in(key, num_draws + 1 + number[0])
            same = jnp.broadcast_to(run_key, num_draws)
            numbers = jnp.broadcast_to(number[0], num_draws)
            return draws._replace(run_keys=same, noise_numbers=numbers)

        found = self._runs.over_draws(
            choose,
            lambda sites, key, *_: function(sites, key),
            (what, num_draws, num_noise_draws),
            *given,
            batch_size=max(1, ROWS_AT_A_TIME // rows),
            num_noise_draws=num_noise_draws,
        )
        return jax.tree.map(self._in_chains, jax.device_get(found))

    def _in_chains(self, values: np.ndarray) -> np.ndarray:
        return np.reshape(values, (*self._shape, *values.shape[1:]))

    def known(self, drawn: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Draws of data, [chains, draws, ...], without unknown rows and entries."""
        return {
            n: known_part(v, self.data[n], 2) if n in self.data else v
            for n, v in drawn.items()
        }

    def posterior_groups(self) -> dict[str, dict]:
        """The draws and the frozen parameters, as groups."""
        assert isinstance(self._posterior, Samples)
        values = self._posterior.values
        return {
            "posterior": {n: self._in_chains(np.asarray(v)) for n, v in values.items()},
            "constant_data": self._frozen,
        }

    def as_arviz(self, groups: dict[str, Any], coords, dims) -> Any:
        """The groups, those that belong with them, and what they are to be added to."""
        if self._drawn:
            groups |= self.posterior_groups()
        if self.data:
            groups["observed_data"] = {
                name: known_part(data.values, data) for name, data in self.data.items()
            }
        _require_same_rows(self._add_to, groups)
        # What is not among the groups may be held by a posterior at other inputs.
        names = {name for content in groups.values() for name in content}
        shapes, plates = (
            {name: value for name, value in facts.items() if name in names}
            for facts in (self._facts.shapes, self._facts.plates)
        )
        rows = {name: known_rows(data) for name, data in self.data.items()}
        others = [] if self._add_to is not None else self._of_other_rows(groups)
        # A fit and the prior have no labels; what their groups are added to may.
        like = self._like if is_arviz(self._like) else self._add_to
        axes = axes_of(shapes, plates, rows, coords, dims, like, others)
        origin = dict(known_of(self._like, "inducing_origin"))
        processes = ProcessFacts(
            *(
                dict(known_of(self._like, name)) or now
                for name, now in self._runs.facts.processes._asdict().items()
            )
        )
        precision = known_of(self._like, "precision") or jnp.result_type(float).name
        of_model = self._facts.whitened, self._layouts, origin
        kept = Kept(*of_model, *processes, precision)
        has_owner = "posterior" in groups or "prior" in groups
        found = to_arviz(
            groups.pop("posterior", None),
            **groups,
            **axes._asdict(),
            attrs=kept.as_attrs() if has_owner else None,
        )
        return found if self._add_to is None else add_groups(self._add_to, found)

    def _of_other_rows(self, groups: dict[str, Any]) -> list[str]:
        """Sites with data, unless these are those of the posterior."""
        before = group(self._like, "observed_data") if is_arviz(self._like) else {}
        known = groups.get("observed_data", {})
        return [
            name
            for name in self._facts.data
            if not (name in known and _is_same(known[name], before.get(name)))
        ]


def _is_data(site: dict) -> bool:
    """Whether a site is observed, or would be with data among the arguments."""
    is_seen = has_data(site) or expected_of(site) is not None
    return is_seen and not is_inducing(site)


def latent_values(sites: dict[str, dict]) -> dict[str, Any]:
    """Values of whitened, other latent, and deterministic sites."""
    return {
        name: site["value"]
        for name, site in sites.items()
        if is_inducing(site)
        or is_latent(site)
        or (site["type"] == "deterministic" and not is_layer(site))
    }


def _chains_and_draws(posterior, taken, num_draws: int | None) -> tuple[int, int]:
    """Number of chains, and of draws in each."""
    if isinstance(taken, Guide):
        count = _DRAWS_OF_FIT if num_draws is None else num_draws
        return 1, require_count(count, "num_draws")
    if num_draws is not None:
        raise ValueError(
            "num_draws is that of a fit; of draws every one is used. For fewer, thin "
            "them: draws.sel(draw=slice(None, None, 10))."
        )
    if isinstance(posterior, dict):
        return 1, taken.num_draws
    first = next(iter(group(posterior, "posterior").values()))
    return first.shape[:2]


def _draws_of_guide(key, model, guide: Guide, args, kwargs, num_draws: int) -> Samples:
    """v and θ drawn from q, in the form of draws of a sampler."""
    runs = PosteriorModel(model, guide, args, kwargs, key, points=True)
    runs.require_fit()
    names = runs.facts.guide_names

    def values(sites: dict[str, dict], _) -> dict[str, Any]:
        found = latent_values(sites)
        return {
            name: value
            for name, value in found.items()
            if not is_latent(sites[name]) or name in names
        }

    found = runs.over_draws(
        every_draw(num_draws),
        values,
        ("draws of a guide", num_draws),
        batch_size=min(num_draws, 64),
    )
    return Samples(found, guide.params)


def _require_same_rows(add_to, groups: dict[str, Any]) -> None:
    """Refuse draws of other data than those of the object they are to be added to."""
    if add_to is None or "observed_data" not in add_to:
        return
    known = group(add_to, "observed_data")
    given = groups.get("observed_data", {})
    for name, values in given.items():
        if name in known and not _is_same(values, known[name]):
            raise ValueError(
                f"add_to holds other data of site '{name}', which these would replace "
                "beside the draws given them. Leave out add_to for other data."
            )
    drawn = {} if given else groups.get("posterior_predictive", {})
    for name, values in drawn.items():
        rows = np.shape(values)[2:3]
        if name in known and rows != known[name].shape[:1]:
            raise ValueError(
                f"add_to holds {len(known[name])} data of site '{name}', and these are "
                f"draws of {rows[0]}: plots would put them side by side. Leave out "
                "add_to for other inputs (or pass y, if rows of it are masked)."
            )


def _is_same(data: Any, before: Any) -> bool:
    """Whether data are those of before, which may have been of another precision."""
    if np.shape(data) != np.shape(before):
        return False
    return np.allclose(data, before, rtol=1e-5, atol=0.0, equal_nan=True)


def _require_arviz(add_to) -> None:
    if add_to is not None and not is_arviz(add_to):
        raise ValueError(
            "add_to must be an ArviZ object, such as gp.sample returns, and is a "
            f"{type(add_to).__name__}."
        )
