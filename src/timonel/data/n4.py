r"""N4: who should avoid, or be chosen for, something that belongs to a culture.

A pickled pair `(different, equal)`; a row is `[question, label, "t-[item, [in-groups], [out-groups]]"]`:

    question = stem \n(a) X (b) Y (c) Z        X, Y: one in-group and one out-group, in random order
    t        = template family                 0 wear, 1 make and sell: avoid; 2 speak, 3 be cast: choose

On `different` the stem names the cultural item; on `equal` a neutral item stands in its place, the right
answer is always (c), and the third field still names the cultural item. The stored label is the slot (0, 1)
of the option that polarity makes right, in both halves; no function here reads the in-group from it.
A neutral item is what fills the gap of the one template of the family that the stem matches; the templates
are the stems of `different` without their items.

Errors:
    InputError: no such file, no such structure, or a pickle that asks for anything but lists and integers.

Source: Wang et al. 2025, "Fairness through Difference Awareness" (arXiv 2502.01926); CC0, for evaluation and
not for training. It does not show that every label is one that all members of a group would give.
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from timonel.data.unpickle import load, read_bytes
from timonel.errors import InputError

N4_SHA256 = "f16a932b5ea96fa75a91b64f4167980f960802bda8ee30fe233187c5f2e8828d"
"""The file as its authors published it."""

_QUESTION = re.compile(r"\n\(a\) (.*?) \(b\) (.*?) \(c\) (.*)\Z")
_ARTICLE = re.compile(r"\A(?:a|an|the)\s+", re.IGNORECASE)
_POLARITY: tuple[Literal["avoid", "choose"], ...] = ("avoid", "avoid", "choose", "choose")
_LONGEST = 10_000
_EXPECTED = "use N4_1k.pkl as its authors published it."


@dataclass(frozen=True, slots=True)
class N4Row:
    """One question.

    Attributes:
        question: the text as stored, options included.
        label: slot (0 = (a), 1 = (b)) of the option that polarity makes right, as stored.
        family: template family, 0 to 3.
        item: the cultural item as stored, article included; on `equal` the stem does not contain it.
        in_groups, out_groups: identities that the item does and does not belong to, as stored.
    """

    question: str
    label: int
    family: int
    item: str
    in_groups: tuple[str, ...]
    out_groups: tuple[str, ...]

    @property
    def stem(self) -> str:
        """The question without its options."""
        return self.question[: _parse(self.question).start()]

    @property
    def options(self) -> tuple[str, str, str]:
        """The texts of (a), (b) and (c)."""
        a, b, c = _parse(self.question).groups()
        return a, b, c

    @property
    def polarity(self) -> Literal["avoid", "choose"]:
        """Whether the right answer avoids the in-group or chooses it."""
        return _POLARITY[self.family]


@dataclass(frozen=True, slots=True)
class N4:
    """Both halves, and the hash of the file that they came from (`N4_SHA256` for the published one)."""

    different: tuple[N4Row, ...]
    equal: tuple[N4Row, ...]
    sha256: str


def without_article(text: str) -> str:
    """An identity as it is shown: without its leading a, an or the."""
    return _ARTICLE.sub("", text.strip())


def identity_key(text: str) -> str:
    """What two spellings of one identity share: no leading article, lower case."""
    return without_article(text).lower()


def in_group_slot(row: N4Row) -> Literal["a", "b"]:
    """The slot whose option is one of the in-groups, compared by key."""
    keys = {identity_key(group) for group in row.in_groups}
    in_a, in_b = (identity_key(option) in keys for option in row.options[:2])
    if in_a == in_b:
        raise InputError(
            f"in-groups {sorted(keys)} stand in {'both options' if in_a else 'neither option'} of "
            f"{row.question[:80]!r} where one was expected; {_EXPECTED}"
        )
    return "a" if in_a else "b"


def templates(n4: N4) -> tuple[tuple[int, str], ...]:
    """The distinct (family, stem with `{}` for the item) of `different`, sorted: 16 in the published file."""
    return tuple(sorted({(row.family, row.stem.replace(row.item, "{}")) for row in n4.different}))


def neutral_items(n4: N4) -> tuple[str, ...]:
    """The neutral item of each row of `equal`, in the same order."""
    patterns: dict[int, list[re.Pattern[str]]] = {}
    for family, template in templates(n4):
        # The first slot captures; a template that names its item twice must name the same one twice.
        head, *rest = (re.escape(part) for part in template.split("{}"))
        again = r"\1".join(rest)
        patterns.setdefault(family, []).append(re.compile(f"{head}(.+?){again}", re.DOTALL))
    found = []
    for row in n4.equal:
        matches = [m[1] for p in patterns.get(row.family, []) if (m := p.fullmatch(row.stem)) is not None]
        if len(matches) != 1:
            raise InputError(
                f"{row.stem[:80]!r} fits {len(matches)} templates of family {row.family} where one was "
                f"expected; {_EXPECTED}"
            )
        found.append(matches[0])
    return tuple(found)


def read_n4(path: str | Path) -> N4:
    """Read N4 from its pickle, of which nothing is executed.

    Args:
        path: the file `N4_1k.pkl`; one with another hash is accepted if its structure is right.

    Raises:
        InputError: the file cannot be read, asks for a forbidden global, or has another structure.

    Example:
        >>> read_n4("N4_1k.pkl").different[0].options[:2]  # doctest: +SKIP
        ('a Turkish person', 'an atheist')
    """
    path = Path(path)
    data = read_bytes(path)
    halves = load(data, path)
    if not (isinstance(halves, (list, tuple)) and len(halves) == 2):
        raise InputError(f"{path} holds no pair of lists (different, equal); {_EXPECTED}")
    different, equal = _half(halves[0], f"{path}, different"), _half(halves[1], f"{path}, equal")
    for number, row in enumerate(different):
        if row.item not in row.stem:
            raise InputError(f"{path}, different row {number}: the stem does not name {row.item!r}; {_EXPECTED}")
    return N4(different, equal, hashlib.sha256(data).hexdigest())


def _half(rows: object, where: str) -> tuple[N4Row, ...]:
    if not (isinstance(rows, (list, tuple)) and rows):
        raise InputError(f"{where} is not a list of rows; {_EXPECTED}")
    return tuple(_row(row, f"{where} row {number}") for number, row in enumerate(rows))


def _row(stored: object, where: str) -> N4Row:
    if not (isinstance(stored, (list, tuple)) and [type(field) for field in stored] == [str, int, str]):
        raise InputError(f"{where} is not [question, label, scenario] (text, integer, text); {_EXPECTED}")
    question, label, scenario = stored
    if len(question) > _LONGEST or _QUESTION.search(question) is None:
        raise InputError(f"{where}: the question does not end in options (a), (b) and (c); {_EXPECTED}")
    if label not in (0, 1):
        raise InputError(f"{where}: label {label} is neither 0 nor 1; {_EXPECTED}")
    row = N4Row(question, label, *_scenario(scenario, where))
    try:
        in_group_slot(row)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return row


def _scenario(text: str, where: str) -> tuple[int, str, tuple[str, ...], tuple[str, ...]]:
    family, _, literal = text.partition("-")
    try:
        if family not in ("0", "1", "2", "3") or len(literal) > _LONGEST:
            raise ValueError("unknown family, or too long")
        item, in_groups, out_groups = ast.literal_eval(literal)
        groups = [list(in_groups), list(out_groups)]
        if not all(type(name) is str and name for name in (item, *groups[0], *groups[1])):
            raise ValueError("a name that is no text")
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise InputError(
            f"{where}: {text[:80]!r} is not 't-[item, [in-groups], [out-groups]]', t from 0 to 3; {_EXPECTED}"
        ) from error
    return int(family), item, tuple(groups[0]), tuple(groups[1])


def _parse(question: str) -> re.Match[str]:
    found = _QUESTION.search(question)
    if found is None:
        raise InputError(f"{question[:80]!r} has no options (a), (b) and (c); {_EXPECTED}")
    return found
