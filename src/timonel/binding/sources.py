"""Where pairs come from: `culture` (ours), `n4:PATH` or `pairs:FILE.jsonl`, as it is written after --data."""

from __future__ import annotations

from dataclasses import dataclass

from timonel.binding.culture_pairs import pairs_from_culture
from timonel.binding.factorial import pairs_from_n4
from timonel.binding.own_pairs import pairs_from_rows
from timonel.binding.pair import Pair
from timonel.data.culture import read_culture
from timonel.data.n4 import N4_SHA256, read_n4
from timonel.data.pairs import read_contrasts, unbalanced
from timonel.errors import InputError


@dataclass(frozen=True, slots=True)
class Source:
    """Pairs, and what is known of where they come from.

    Attributes:
        pairs: all of them, in the data's order.
        name: culture, n4 or pairs.
        language: ISO 639-1 code; `und` where own rows name none, several with commas.
        sha256: of the data.
        remark: what a reader should know of it; empty where there is nothing.
    """

    pairs: tuple[Pair, ...]
    name: str
    language: str
    sha256: str
    remark: str = ""


def read_pairs(spec: str, language: str = "en") -> Source:
    """Reads the pairs that `--data` names.

    Args:
        spec: `culture`, `n4:PATH` with the path of `N4_1k.pkl`, or `pairs:FILE.jsonl` with one's own contrasts.
        language: of the questions; N4 is English, and own rows name theirs.

    Raises:
        InputError: an unknown name, a missing file, a file that is not what it should be.
    """
    name, _, path = spec.partition(":")
    if name == "culture" and not path:
        culture = read_culture(language)
        return Source(pairs_from_culture(culture), "culture", language, culture.sha256)
    if name == "n4" and path:
        if language != "en":
            raise InputError(f"N4 is in English, but --lang is {language!r}; use --data culture for other languages.")
        n4 = read_n4(path)
        remark = "" if n4.sha256 == N4_SHA256 else "this is not the published N4 file: its sha256 differs"
        return Source(pairs_from_n4(n4), "n4", "en", n4.sha256, remark)
    if name == "pairs" and path:
        if language != "en":
            raise InputError(f"--lang is {language!r}, but own rows name their language; leave it out.")
        own = read_contrasts(path)
        spoken = ",".join(sorted({row.language for row in own.rows}))
        return Source(pairs_from_rows(own.rows), "pairs", spoken, own.sha256, unbalanced(own.rows))
    raise InputError(
        f"--data is {spec!r}, but it must be culture, n4:PATH (the file N4_1k.pkl) or pairs:FILE.jsonl; "
        "write one of these."
    )
