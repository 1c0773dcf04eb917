"""Random keys of a run: those of the package, and those that a model asks for."""

from typing import Any

import numpyro
from numpyro.handlers import Messenger

__all__ = ["asks_for_keys", "random_key"]


def random_key() -> Any:
    """A key from ``numpyro.handlers.seed``; None if there is none."""
    with _of_the_package():
        return numpyro.prng_key()


class asks_for_keys(Messenger):
    """Whether a model calls ``numpyro.prng_key()``, as for dropout.

    Attributes:
        found: The answer, after a run.
    """

    found = False

    def process_message(self, msg: Any) -> None:
        """Notice a key that is not marked."""
        if msg["type"] == "prng_key" and "is_of_the_package" not in msg:
            self.found = True


class _of_the_package(Messenger):
    def process_message(self, msg: Any) -> None:
        if msg["type"] == "prng_key":
            msg["is_of_the_package"] = True
