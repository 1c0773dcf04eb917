"""The tables of speed equal what the committed results give; the cases are the same."""

import json
import shutil

import numpy as np
import pytest

from benchmarks.speed import __main__ as command
from benchmarks.speed import cases, pages, results, scaling, steps


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_is_what_the_results_give(name):
    text = (pages.DOCS / name).read_text()
    made = pages.rendered(text, results.RESULTS)
    assert text == made, "run python -m benchmarks.speed page"
    assert "% table: " in text


def test_a_page_shows_another_result(tmp_path):
    shutil.copytree(results.RESULTS, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "steps.json"
    held = json.loads(path.read_text())
    ours = held["rows"][0]["contenders"]["svgp_ppl"]
    ours["milliseconds"] = [10 * each for each in ours["milliseconds"]]
    path.write_text(json.dumps(held))
    text = (pages.DOCS / "performance.md").read_text()
    assert pages.rendered(text, tmp_path) != text


def row(**times):
    held = {name: {"milliseconds": each} for name, each in times.items()}
    return {"case": "S2", "contenders": held | {"gpflux": {"missing": "not offered"}}}


def test_a_ratio_is_the_median_of_those_within_rounds():
    """While the machine is slow, everybody is: ratios of medians would be 1.5."""
    one = row(svgp_ppl=[1.0, 4.0, 2.0], gpflow=[3.0, 8.0, 2.0])
    assert steps.ratio(one, "gpflow", "svgp_ppl") == 2.0
    assert steps.ratio(one, "gpflux", "svgp_ppl") is None
    assert steps.median(one, "svgp_ppl") == 2.0


def test_the_exponent_is_that_of_a_power():
    rows = [{"value": n, "milliseconds": [0.2 * n**1.7] * 3} for n in (10, 40, 90)]
    assert scaling.exponent(rows) == pytest.approx(1.7)


def test_rows_are_replaced_by_those_of_the_same_case(tmp_path):
    for time in (1.0, 2.0):
        results.write(
            tmp_path, "steps", [{"case": "S1", "dtype": "float64", "t": time}]
        )
    results.write(tmp_path, "steps", [{"case": "S1", "dtype": "float32", "t": 3.0}])
    held = results.read(tmp_path, "steps")
    assert [each["t"] for each in held["rows"]] == [2.0, 3.0]
    assert set(held) == {"machine", "versions", "rows"}


def test_cases_are_chosen_by_the_beginnings_of_their_names():
    names = [case.name for case in cases.chosen(["S1", "S4p"])]
    assert names == ["S1-100", "S1-500", "S4p"]
    assert len(cases.chosen(None)) == len(cases.CASES)
    with pytest.raises(SystemExit, match="there is no case S9"):
        cases.chosen(["S9"])


@pytest.mark.parametrize("name", sorted(set(cases.CASES) - {"S8"}))
def test_data_of_a_case_have_its_sizes(name):
    case = cases.CASES[name]
    x, y, z = cases.data_of(case, "float32")
    assert (x.shape, z.shape) == ((case.n, case.d), (case.m, case.d))
    assert len(y) == case.n and np.isfinite(y).all()


def test_the_command_knows_every_measurement():
    for name in command.MEASUREMENTS:
        assert command.parse([name]).name == name
    assert command.parse(["--cases", "S2", "--x64"]).name == "steps"


class Answers:
    """A contender that is not installed, and one whose process ends."""

    def __init__(self, name, python, case, dtype):
        self.name, self.rounds, self.start = name, [], {}

    takes_part = steps.Contender.takes_part
    facts = steps.Contender.facts

    def wait(self):
        missing = {"missing": "No module named 'gpflow'"}
        self.start = (
            missing if self.name == "gpflow" else {"first": 1.0, "versions": {}}
        )

    def block(self):
        if self.name == "gpytorch":
            self.start, self.rounds = {"missing": "failed"}, []
        else:
            self.rounds.append({"milliseconds": 2.0, "gained": 0.1, "peak": 0.4})

    def end(self):
        pass


def test_a_peer_that_is_missing_has_a_row_that_says_so(monkeypatch):
    monkeypatch.setattr(steps, "Contender", Answers)
    beside = {"gpflow": "python", "gpytorch": "python"}
    found = steps.measured(cases.CASES["S2"], "float32", 3, beside)["contenders"]
    assert found["gpflow"] == {"missing": "No module named 'gpflow'"}
