"""Results as Markdown, put between two marks of a document; what stands outside of them is a person's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.result import Result, Row

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
_HEAD = (
    "| | measured | median | 95 % interval | turns | in CPU time | target | met |\n|---|---|---|---|---|---|---|---|"
)


def markdown(results: Sequence[Result], machine: Mapping[str, str]) -> str:
    """The whole generated part."""
    lines = [f"- {name}: {value}" for name, value in machine.items()]
    table = [_HEAD, *(_line(result.name, row) for result in results for row in result.rows)]
    words = [line for result in results for line in _words(result)]
    return "\n".join([*lines, "", *table, "", *words])


def spliced(document: str, part: str) -> str:
    """The document with the part between its marks; they are put at its end where they are missing."""
    if document.count(BEGIN) != document.count(END) or document.count(BEGIN) > 1:
        raise SystemExit(f"The document has not one {BEGIN} and one {END} after it; mend it by hand.")
    if BEGIN not in document:
        return f"{document.rstrip()}\n\n{BEGIN}\n{part}\n{END}\n"
    before, _, rest = document.partition(BEGIN)
    if END not in rest:
        raise SystemExit(f"{END} stands before {BEGIN}; mend the document by hand.")
    return f"{before}{BEGIN}\n{part}\n{END}{rest.partition(END)[2]}"


def _line(name: str, row: Row) -> str:
    found = row.found
    cpu = "" if found.cpu is None else f"{found.cpu:.3g}"
    cells = [name, row.what, f"{found.value:.3g}", f"[{found.low:.3g}, {found.high:.3g}]", str(found.n), cpu]
    return "| " + " | ".join([*cells, row.wanted, row.met]) + " |"


def _words(result: Result) -> list[str]:
    head = f"- {result.name}, {result.title}."
    if result.skipped:
        return [f"{head} Not run: {result.skipped}"]
    return [head, *(f"  - {check}" for check in result.checks)]
