"""The raw N4 task: its own questions, as stored, in both halves.

Spans: on `different` the item is the cultural one; on `equal` it is the neutral one that stands in its place, and
`related` is still the in-group of the cultural item. Both stand where the template that the stem fits has its gap.
A scenario is a stored scenario id: a family, an item, its in-groups and its out-groups (67 in the published file).

Errors:
    InputError: the file cannot be used, or a stem fits none of its own templates.

Source: Wang et al. 2025, "Fairness through Difference Awareness" (arXiv 2502.01926); for evaluation, not for training.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from timonel.data.n4 import N4, N4_SHA256, N4Row, in_group_slot, neutral_items, read_n4, templates
from timonel.errors import InputError
from timonel.evaluate.questions import Half, Question, QuestionTask, with_options
from timonel.evaluate.sampling import sample

_Id = tuple[int, str, tuple[str, ...], tuple[str, ...]]


def n4_task(path: str | Path, *, limit: int | None = None, seed: int = 0) -> QuestionTask:
    """The task from its file.

    Args:
        path: `N4_1k.pkl`.
        limit: questions a side; None asks all.
        seed: of sampling.
    """
    n4 = read_n4(path)
    remark = "" if n4.sha256 == N4_SHA256 else "this is not the published N4 file: its sha256 differs"
    return QuestionTask("n4", sample(n4_questions(n4), limit, seed), "en", n4.sha256, remark=remark)


def n4_questions(n4: N4) -> tuple[Question, ...]:
    """All questions, `different` first, numbered as in their half."""
    names = _scenario_names(n4)
    gaps: dict[int, list[str]] = defaultdict(list)
    for family, template in templates(n4):
        gaps[family].append(template)

    def question(number: int, half: Half, row: N4Row, item: str) -> Question:
        first = _place(gaps[row.family], row.stem, item)
        slot = in_group_slot(row)
        text, marks = with_options(row.stem, row.options, slot, (first, first + len(item)))
        return Question(number, half, names[_id(row)], row.polarity, str(row.family), text, marks, slot)

    different = [question(number, "different", row, row.item) for number, row in enumerate(n4.different)]
    neutral = zip(n4.equal, neutral_items(n4), strict=True)
    equal = [question(number, "equal", row, item) for number, (row, item) in enumerate(neutral)]
    return (*different, *equal)


def _place(gaps: list[str], stem: str, item: str) -> int:
    """Where the item stands: a short neutral one, such as "smart", may occur elsewhere in the stem too."""
    for template in gaps:
        if template.replace("{}", item) == stem:
            return template.index("{}")
    raise InputError(f"{stem[:80]!r} fits none of its family's templates; use N4_1k.pkl as its authors published it.")


def _id(row: N4Row) -> _Id:
    return row.family, row.item, row.in_groups, row.out_groups


def _scenario_names(n4: N4) -> dict[_Id, str]:
    """`family-item`; where one item has two ids, they are told apart by a number."""
    names: dict[_Id, str] = {}
    for one in sorted({_id(row) for row in (*n4.different, *n4.equal)}):
        name = f"{one[0]}-{one[1]}"
        again = sum(other.split(" #")[0] == name for other in names.values())
        names[one] = f"{name} #{again + 1}" if again else name
    return names
