"""Tables of the page on samplers come from the files of results."""

import pytest

from benchmarks.sampling import tables
from benchmarks.sampling.runs import averaged


def test_the_page_has_the_numbers_of_the_results():
    text = tables.PAGE.read_text()
    assert tables.BLOCK.search(text)
    assert tables.rendered(text) == text, "run python -m benchmarks.sampling pages"


def test_rates_and_differences():
    row = {
        "ESS min": 200.0,
        "R-hat": 1.01,
        "to 400": 12.34,
        "sampling": 4.0,
        "gradients": 10_000,
        "gradients a draw": 8.0,
        "divergences": 0,
        "moments": {"scale": [[1.0, 2.0], [0.3, 0.4], [100.0, 400.0]]},
    }
    found = tables.cells(row)
    assert found == ("200", "1.010", "12.3 s", "50", "20", "8", "0")
    other = row | {"moments": {"scale": [[1.0, 2.2], [0.3, 0.4], [100.0, 400.0]]}}
    # √(0.4²/400 + 0.4²/400) = 0.0283, and 0.2 is 7.1 of them.
    assert tables.difference(other, row) == "7.1 se"
    assert tables.difference(row, row) == "0.0 se"


@pytest.mark.parametrize("name", sorted(p.stem for p in tables.RESULTS.glob("*.json")))
def test_samplers_of_a_file_agree(name):
    found = tables.read(name)
    reference = found["rows"].get(tables.reference_of(found["rows"]))
    for sampler, row in found["rows"].items():
        # Another model is another posterior: an approximation of the process.
        comparable = not sampler.startswith(("hsgp", "SGPMC"))  # one chain: no R-hat
        if reference is not None and row["R-hat"] < 1.05 and comparable:
            off = float(tables.difference(row, reference).split()[0])
            assert off < 5.0, sampler


def test_a_row_of_several_runs():
    one = {
        "ESS min": 200.0,
        "ESS median": 300.0,
        "R-hat": 1.01,
        "call": 10.0,
        "sampling": 4.0,
        "gradients": 10_000,
        "gradients a draw": 8.0,
        "divergences": 1,
        "moments": {"scale": [[1.0], [0.3], [100.0]]},
    }
    other = one | {"ESS min": 400.0, "call": 5.0, "sampling": 2.0, "R-hat": 1.02}
    row = averaged([one, other])
    # Six seconds to the first draw, then 3 s for 300 effective draws.
    assert row["to 400"] == pytest.approx(6.0 + 3.0 * 400 / 300)
    assert row["divergences"] == 2 and row["R-hat"] == 1.02
    assert row["moments"]["scale"] == [[1.0], [0.3], [200.0]]
    assert row["ESS min of each run"] == [200.0, 400.0]
