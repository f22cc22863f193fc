"""Packed sequences: nothing lost, nothing twice, each column sees its own sequence alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timonel.engine.tree import Tree, common

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=12)


@given(sequences)
def test_a_path_spells_its_sequence_and_sees_only_itself(listed: list[tuple[int, ...]]) -> None:
    tree = Tree(listed)
    sees, positions = tree.sees(), tree.positions(7)
    for sequence in listed:
        path = tree.path(sequence)
        assert tuple(tree.tokens[column] for column in path) == sequence
        assert list(positions[path]) == list(range(7, 7 + len(sequence)))
        for at, column in enumerate(path):
            assert set(sees[column].nonzero()[0]) == set(path[: at + 1])


@given(sequences)
def test_each_shared_token_stands_once(listed: list[tuple[int, ...]]) -> None:
    prefixes = {sequence[:end] for sequence in listed for end in range(1, len(sequence) + 1)}
    assert len(Tree(listed)) == len(prefixes)
    assert Tree(listed).path(listed[0]) == list(range(len(listed[0])))  # the first fills the first columns
    assert Tree(listed).is_chain == (len(prefixes) == max(map(len, listed)))


@given(sequences)
def test_common(listed: list[tuple[int, ...]]) -> None:
    first, second = listed[0], listed[-1]
    shared = common(first, second)
    assert first[:shared] == second[:shared]
    assert first[: shared + 1] != second[: shared + 1] or shared == min(len(first), len(second))
