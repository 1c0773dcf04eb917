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


def test_a_paired_table_has_differences_by_split():
    def scores(nlpd):
        return {"nlpd": nlpd, "joint": nlpd + 1.0}

    chains = {"ess": 100.0, "r_hat": 1.02, "divergences": 2}
    chains |= {"seconds_fit": 9.0, "seconds_draws": 41.0}
    published = {"maximum": 2.539, "draws": 2.524}
    common = {"set": "boston", "published": published, **chains}
    runs = [
        {"maximum": scores(maximum), "draws": scores(draws), **common}
        for maximum, draws in ((2.0, 1.9), (3.0, 2.8), (4.0, 3.7))
    ]
    rows, together = tables.paired(runs).splitlines()[2:]
    assert rows == (
        "| boston | of each row | 3.000 ± 0.577 | 2.800 ± 0.520 | −0.200 ± 0.058 "
        "|  |  | 100 | 1.02 | 6 | 9 + 41 |"
    )
    assert together == (
        "| boston | of all together | 4.000 ± 0.577 | 3.800 ± 0.520 | −0.200 ± 0.058 "
        "| 2.539 | 2.524 |  |  |  |  |"
    )
