"""Draws what a command prints as an SVG: `timonel demo | python docs/picture.py docs/demo.svg`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

WIDTH = 132


def main() -> None:
    """Reads the text, writes the picture."""
    text = sys.stdin.read().rstrip()
    # The terminal wraps what is longer; so does the picture.
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    for line in text.split("\n"):
        bold = re.match(r"\d\. |Effect|Cutting attention|Share of", line) is not None
        style = "bold" if bold else "yellow" if line.startswith("Warning") else ""
        console.print(Text(line.rstrip(), style=style))
    svg = console.export_svg(title="timonel demo", theme=MONOKAI)
    # No font from elsewhere: a page that shows the picture asks no third party for anything.
    svg = re.sub(r"@font-face\s*{.*?}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace")
    Path(sys.argv[1]).write_text(svg)


if __name__ == "__main__":
    main()
