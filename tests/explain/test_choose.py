"""The three rules choose what they say they choose."""

import pytest
import torch
from torch import nn

from bndl import DecisionLayer, InputError, compact
from bndl.explain import choose_feature

H = torch.tensor([[0.0, 9.0, 2.0, 3.0]])
WEIGHTS = torch.tensor([[7.0, 0.1, 3.0, 1.0], [0.0, 0.0, 1.0, 4.0]])


def layer(**settings) -> DecisionLayer:
    made = DecisionLayer(4, 2, **settings).eval()
    with torch.no_grad():
        made.weight.copy_(WEIGHTS if not settings else torch.cat([WEIGHTS, 2 * WEIGHTS], dim=1))
    return made


@pytest.mark.parametrize(("rule", "expected"), [("weight", [0, 3]), ("activation", [1, 1]), ("contribution", [2, 3])])
def test_each_rule(rule, expected):
    labels = torch.tensor([0, 1])
    assert choose_feature(layer(), H.expand(2, 4), labels, rule=rule).tolist() == expected
    linear = nn.Linear(4, 2)
    linear.weight.data.copy_(WEIGHTS)
    assert choose_feature(linear, H.expand(2, 4), labels, rule=rule).tolist() == expected


def test_the_default_is_the_largest_term_and_numbers_survive_compact():
    made = layer()
    with torch.no_grad():
        made.weight[:, 1] = 0
    small = compact(made)
    assert small.num_features == 3
    assert choose_feature(small, H, torch.tensor([1])).tolist() == [3]
    assert choose_feature(small, H, torch.tensor([0]), rule="activation").tolist() == [3]


def test_a_negative_part_has_its_own_number():
    assert choose_feature(layer(signed=True), -H, torch.tensor([0])).tolist() == [6]


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="weight, activation, contribution"):
        choose_feature(layer(), H, torch.tensor([0]), rule="best")
    with pytest.raises(InputError, match=r"0\.\.1"):
        choose_feature(layer(), H, torch.tensor([2]))
