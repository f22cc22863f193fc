"""Own contrasts for tests: the planted pairs written out as rows of a file, and single rows."""

from __future__ import annotations

import json
from pathlib import Path

from oracles.planted import Bench
from timonel.binding.own_pairs import OwnPair, pairs_from_rows
from timonel.binding.pair import Condition, Pair
from timonel.binding.sources import read_pairs
from timonel.data.pairs import ContrastRow


def planted_row(pair: Pair, condition: Condition, control: str) -> str:
    """The planted pair's letters prompt, with marks; the text itself is the oracle's."""
    texts = [option.text for option in pair.options(condition)]
    varied = 0 if pair.slot == "a" else 1
    marked = list(texts)
    marked[varied] = f"[[from:{texts[varied]}]]"
    if control == "control_from":
        marked[1 - varied] = f"[[control_from:{texts[1 - varied]}]]"
    stem = pair.stem.replace(pair.item, f"[[to:{pair.item}]]", 1)
    if control == "control_to":
        stem = stem.replace("Who", "[[control_to:Who]]", 1)
    options = f"(a) {marked[0]} (b) {marked[1]} (c) {pair.neither}"
    return f"{stem}\n{options}\n\n{pair.wording.choice}\n{pair.wording.base_line}"


def own_pairs(bench: Bench, folder: Path, control: str = "control_from") -> tuple[OwnPair, ...]:
    """The planted pairs, written to a file as own contrasts and read back."""
    file = folder / f"{control}.jsonl"
    rows = [
        {
            "id": str(pair.pair),
            "group": pair.item,
            "match": planted_row(pair, "match", control),
            "mismatch": planted_row(pair, "mismatch", control),
            "answers": {"toward": ["a", "A", "b", "B"], "away": ["c", "C"]},
            "balance": [pair.related.key, pair.substitute.key],
        }
        for pair in bench.planted.pairs
    ]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    source = read_pairs(f"pairs:{file}")
    assert (source.name, source.language, source.remark) == ("pairs", "und", "")
    assert all(isinstance(pair, OwnPair) for pair in source.pairs)
    return source.pairs  # type: ignore[return-value]


def pairs_of(*, toward: list[str], away: list[str], chat: bool = False, **texts: str) -> tuple[OwnPair, ...]:
    row = ContrastRow(
        "f, line 1", "x", "g", texts["match"], texts["mismatch"], tuple(toward), tuple(away), None, chat, "en"
    )
    return pairs_from_rows([row])
