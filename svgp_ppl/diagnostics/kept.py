"""What an ArviZ object says of the model whose latent values it holds."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Kept", "is_arviz", "kept_by", "known_of"]


class Kept(NamedTuple):
    """Attributes of the group ``posterior`` or ``prior``, each a line of JSON.

    Attributes:
        whitened_sites: Names of the variables that are whitened values.
        param_layouts: The trees of which frozen parameters are leaves, by name.
        inducing_origin: Digests of the arguments that inducing inputs were computed
            from, by name.
        input_columns: Columns of the tables that each process is called with.
        kernels: Classes of the kernel and of the inducing features of each process.
        inducing_digests: Digests of inducing inputs that are constants, by process.
        precision: That of the whitened values, such as ``float32``.
    """

    whitened_sites: list[str]
    param_layouts: dict[str, Any]
    inducing_origin: dict[str, str]
    input_columns: dict[str, list[list[str]]]
    kernels: dict[str, str]
    inducing_digests: dict[str, str]
    precision: str

    def as_attrs(self) -> dict[str, str]:
        """The attributes."""
        return {name: json.dumps(value) for name, value in self._asdict().items()}


def is_arviz(posterior: Any) -> bool:
    """Whether it is an ArviZ object of either version."""
    return isinstance(posterior, Mapping) and not isinstance(posterior, dict)


def kept_by(posterior: Any) -> Kept | None:
    """What is kept in an ArviZ object; None if it is not one of ours."""
    if not is_arviz(posterior):
        return None
    name = "posterior" if "posterior" in posterior else "prior"
    attrs = posterior[name].attrs if name in posterior else {}
    if "whitened_sites" not in attrs:
        return None
    unknown = dict.fromkeys(Kept._fields, "{}") | {"precision": '""'}
    written = {name: attrs.get(name, unknown[name]) for name in Kept._fields}
    return Kept(**{name: json.loads(value) for name, value in written.items()})


def known_of(posterior: Any, name: str) -> Any:
    """One of these facts, which a fit has as an attribute; {} if it is not known."""
    if isinstance(posterior, Mapping):  # whose attributes xarray takes for its own
        posterior = kept_by(posterior)
    return getattr(posterior, name, {})
