import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import InputError
from timonel.models import format_head, parse_head, parse_heads


@given(st.integers(0, 999), st.integers(0, 999))
def test_a_written_head_reads_back(layer: int, head: int) -> None:
    assert parse_head(format_head(layer, head)) == (layer, head)
    assert parse_head(f"{layer}.{head}") == (layer, head)


@pytest.mark.parametrize("text", ["", "8", "L8", "H2", "8.2.1", "L-1H2", "8,2", "L8 H2", "H2L8", "L8H2x", "1e3.2"])
def test_anything_else_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(InputError, match=r"is not a head: .*L8H2 or 8.2") as refusal:
        parse_head(text)
    assert repr(text) in str(refusal.value)


def test_a_list_keeps_its_order_and_refuses_doubles() -> None:
    assert parse_heads(" l9h5, 8.2 ") == ((9, 5), (8, 2))
    with pytest.raises(InputError, match="L8H2 is named 2 times"):
        parse_heads("L8H2,9.5,8.2")
