"""Some of the cases of benchmarks/hostile: mistakes that are refused before a fit."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks" / "hostile"
# Every so many cases: what is left of half a thousand takes seconds.
EVERY = 6


@pytest.fixture(scope="module")
def table():
    """The modules of the table."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("cases"), importlib.import_module("refusals")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("cases", "refusals"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("first", [0, 3])
def test_mistakes_are_refused_in_words(table, as_users_call, first):
    cases, refusals = table
    every = [case for make in refusals.REFUSED for case in make()]
    assert len(every) > 450
    found = {f"{c.group}: {c.name}": cases.outcome(c) for c in every[first::EVERY]}
    wrong = {name: result for name, result in found.items() if result[0] != "refused"}
    assert wrong == {}


def test_the_table_sees_what_is_silent_and_what_is_foreign(table, as_users_call):
    cases, _ = table
    silent = cases.Case("a", "b", lambda: 3)
    foreign = cases.Case("a", "b", lambda: [][1])
    by_others = cases.Case("a", "b", lambda: int("a"))
    wrong = cases.Case("a", "b", lambda: (1.0, 1.1, 1e-3), is_right=True)
    results = [cases.outcome(c)[0] for c in (silent, foreign, by_others, wrong)]
    assert results == ["SILENT", "FOREIGN", "FOREIGN", "WRONG"]
