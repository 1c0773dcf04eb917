"""Tables of comparisons in the docs come from the files of results."""

import pytest

from benchmarks.comparisons import tables


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_numbers_of_the_results(page):
    text = page.read_text()
    assert tables.BLOCK.search(text)
    found = tables.rendered(text)
    assert found == text, "run python -m benchmarks.comparisons tables"


def test_a_table_has_means_over_seeds():
    rows = [
        {"set": "boston", "case": "fit", "rmse": rmse, "coverage": 0.9, "r_hat": None}
        for rmse in (1.0, 2.0, 3.0)
    ]
    lines = tables.table([*rows, {"set": "energy", "case": "fit", "rmse": 4.0}])
    assert lines.splitlines() == [
        "| set |  | RMSE | in 90 % intervals | largest R-hat |",
        "|---|---|---|---|---|",
        "| boston | fit | 2.000 ± 0.577 | 90% |  |",
        "| energy | fit | 4.000 |  |  |",
    ]
