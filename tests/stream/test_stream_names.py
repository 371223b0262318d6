"""File names as text and back."""

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bndl.stream.names import from_text, to_text


@given(st.binary(max_size=30))
@example(b"caf\xe9.png")
@example(rb"a literal \xe9 in a name")
@example(rb"\\")
@example("\\ü\n,\"'".encode())
def test_every_name_survives_as_valid_text(name):
    text = to_text(os.fsdecode(name))
    text.encode("utf-8")
    assert os.fsencode(from_text(text)) == name


@given(st.text(alphabet=st.characters(exclude_characters="\\", exclude_categories=("Cs",))))
def test_an_ordinary_name_stands_as_it_is(name):
    assert to_text(name) == name


@pytest.mark.parametrize(("one", "other"), [(b"\xff", rb"\xff"), (b"\xff", rb"\\xff")])
def test_two_names_are_two_texts(one, other):
    assert to_text(os.fsdecode(one)) != to_text(os.fsdecode(other))
