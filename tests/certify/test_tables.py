"""What the console shows of a certificate."""

import torch
from rich.console import Console

from bndl.certify import certify_factors, synthetic
from bndl.certify.study import VIEWS, Column, Control, Study
from bndl.certify.tables import column_table, control_table, describe, kind_table, list_features, sensitivity_table

CLASSES = [f"kind-{number}" for number in range(15)]


def shown(table):
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_certified_features_come_first_and_name_their_witnesses():
    problem = synthetic.planted(seed=1)
    found = certify_factors(problem.theta, problem.phi)
    lines = list(list_features(found, CLASSES, show=4))
    assert lines[0] == "Features, certified first (4 of 6):"
    first = next(own for own in found.theta if own.feature == int(lines[1].split()[0]))
    assert first.verdict == "identifiable"
    samples = ", ".join(map(str, first.zeros.witnesses))
    assert f"{CLASSES[first.window.witness]} uses it alone; samples {samples} are without it" in lines[1]
    assert len(lines) == 9
    assert "not shown: " in lines[7]


def test_what_is_not_applicable_is_said_once_and_no_feature_is_listed():
    found = certify_factors(torch.rand(50, 20), torch.rand(20, 5))
    lines = list(describe(found))
    assert len([line for line in lines if found.reason in line]) == 1
    assert list(list_features(found, CLASSES, show=12)) == []
    assert "No other threshold" in sensitivity_table(found)


def test_the_tables_of_the_study_fit_whatever_the_view():
    columns = [
        Column(1234, view, side, 5, certified, 0.98765, 3, 1e-9)
        for view in VIEWS
        for side in ("theta", "phi")
        for certified in (True, False)
    ]
    controls = [Control(name, 0, 0, 120, 0.97, "no class uses it alone " * 5) for name in synthetic.CONTROLS]
    found = Study(tuple(columns), tuple(controls))
    for table, words in ((kind_table(found), "0.9877"), (column_table(columns), "1234"), (control_table(found), "120")):
        text = shown(table)
        assert "…" not in text
        assert words in text
    assert "probabilities, no anchor" in shown(kind_table(found))


def test_the_table_of_thresholds_fits_and_no_two_headings_are_the_same():
    problem = synthetic.planted(seed=1)
    table = sensitivity_table(certify_factors(problem.theta, problem.phi))
    text = shown(table)
    assert "…" not in text
    headings = [column.header for column in table.columns]
    assert len({heading.strip() for heading in headings}) == len(headings)
