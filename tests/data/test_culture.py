from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import pytest

from timonel.binding.pair import Wording
from timonel.data.culture import CONTINENTS, SHIPPED, WORDING, languages, outsiders, read_culture
from timonel.data.n4 import read_n4, templates
from timonel.errors import InputError

ENGLISH, SPANISH = read_culture(), read_culture("es")
OTHERS = [read_culture(language) for language in languages() if language != "en"]


def test_the_shipped_table_spans_six_continents_with_enough_items():
    assert len(ENGLISH.items) >= 66
    assert {item.continent for item in ENGLISH.items} == set(CONTINENTS)
    firm = Counter(item.continent for item in ENGLISH.items if not item.contested)
    assert min(firm.values()) >= 10
    assert sum(firm.values()) >= 60
    assert all(item.note for item in ENGLISH.items if item.contested)


def test_every_kind_has_two_templates_of_each_polarity():
    counts = Counter((one.kind, one.polarity) for one in ENGLISH.templates)
    kinds = {item.kind for item in ENGLISH.items}
    assert kinds == {one.kind for one in ENGLISH.templates}
    assert all(counts[kind, polarity] >= 2 for kind in kinds for polarity in ("avoid", "choose"))


def test_languages_differ_in_texts_alone():
    assert languages() == ("ar", "en", "es", "hi", "zh")
    for other, part in product(OTHERS, ("items", "identities", "templates")):
        for one, two in zip(getattr(ENGLISH, part), getattr(other, part), strict=True):
            for field in fields(one):
                if field.name not in ("text", "neutral", "stem", "neither"):
                    assert getattr(one, field.name) == getattr(two, field.name)


def test_the_wording_has_the_names_that_prompts_use():
    assert tuple(field.name for field in fields(Wording)) == WORDING
    assert ENGLISH.wording == {}
    for other in OTHERS:
        assert tuple(other.wording) == WORDING
        assert re.search(r"[.。।] \Z", other.wording["choice"])
        assert all(f"({letter})" in other.wording["choice"] for letter in "abc")
        line = other.wording["letter_line"]
        assert line.rpartition("\n")[2] == other.wording["answer_mark"]
        assert all(letter in line for letter in "ABC")
        assert other.wording["base_line"].endswith(" (")


@pytest.mark.parametrize("culture", [ENGLISH, SPANISH], ids=lambda culture: culture.language)
def test_a_stem_holds_its_item_once_and_reads_well(culture):
    for item in culture.items:
        for template in (one for one in culture.templates if one.kind == item.kind):
            for text in (item.text, item.neutral):
                stem = template.stem.replace("{item}", text)
                assert stem.count(text) == 1
                assert not stem.startswith(text)
                assert stem.endswith("?")
                assert "  " not in stem
                # Spanish contracts de + el and a + el: no template may lead there.
                assert not re.search(r"\b(de|a) el\b", stem)


def test_texts_carry_the_article_of_their_language():
    assert all(one.text.startswith("the ") for one in ENGLISH.identities)
    assert all(one.text.startswith("la persona ") for one in SPANISH.identities)
    assert not any(re.match(r"a [aeiou]|an [^aeiouá]", item.text.lower()) for item in ENGLISH.items)
    assert not any(re.match(r"a [aeiou]|an [^aeiouá]", item.neutral) for item in ENGLISH.items)
    for item in SPANISH.items:
        assert item.text.split()[0] in {"un", "una", "el", "la", "los", "las"}
        assert item.neutral.split()[0] in {"un", "una", "el", "la", "los", "las"}


def test_an_outsider_is_no_neighbour_and_lives_in_no_common_state():
    zulu = next(item for item in ENGLISH.items if item.id == "isicholo")
    arepas = next(item for item in ENGLISH.items if item.id == "arepas")
    assert zulu.related == ("zulu",)
    assert not {"zulu", "xhosa", "south_african"} & outsiders(ENGLISH, zulu)
    assert not {"wayuu", "guna"} & outsiders(ENGLISH, arepas)  # peoples who live in Colombia
    assert "icelandic" in outsiders(ENGLISH, zulu)
    within = {one.key: set(one.within) for one in ENGLISH.identities}
    for item in (replace(one, near_miss=()) for one in ENGLISH.items):
        for key in outsiders(ENGLISH, item):
            assert not within[key] & set(item.related)
            assert not any(key in within[one] for one in item.related)
    for item in ENGLISH.items:
        assert not outsiders(ENGLISH, item) & {*item.related, *item.near_miss}


def test_no_sentence_of_n4_is_ours(data_dir):
    def bare(stem: str, gap: str) -> set[str]:
        return {part.strip().lower() for part in re.split(r"(?<=[.?!])\s", stem.replace(gap, " "))}

    theirs = set().union(*(bare(stem, "{}") for _, stem in templates(read_n4(data_dir / "n4" / "N4_1k.pkl"))))
    assert len(theirs) > 16
    for template in ENGLISH.templates:
        assert not bare(template.stem, "{item}") & theirs


def test_the_hash_follows_the_files_and_not_their_line_ends(tmp_path):
    copy = shutil.copytree(SHIPPED, tmp_path / "copy")
    assert read_culture(path=copy) == ENGLISH
    assert SPANISH.sha256 != ENGLISH.sha256
    for file in copy.iterdir():
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_culture(path=copy) == ENGLISH
    edit(copy / "items.tsv", "KwaZulu-Natal", "South Africa")
    assert read_culture(path=copy).sha256 != ENGLISH.sha256


def test_comments_blank_lines_and_column_order_are_free(tmp_path):
    copy = shutil.copytree(SHIPPED, tmp_path / "copy")
    lines = (copy / "identities.tsv").read_text(encoding="utf-8").split("\n")
    moved = ["\t".join(reversed(line.split("\t"))) if line and not line.startswith("#") else line for line in lines]
    (copy / "identities.tsv").write_text("\n# mine\n\n" + "\n".join(moved), encoding="utf-8")
    assert read_culture(path=copy).identities == ENGLISH.identities


def edit(file: Path, old: str, new: str) -> int:
    """Replace the first `old` and return the line (from 1) that it stood in."""
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    return text[: text.index(old)].count("\n") + 1


FAULTS = {
    "id twice": ("items.tsv", "\nkoshari\t", "\nceebu_jen\t", 1, "ceebu_jen was used in line"),
    "id with a space": ("items.tsv", "\nkoshari\t", "\nmy koshari\t", 1, "no plain name"),
    "unknown related": ("items.tsv", "\tzulu\t", "\tzulus\t", 0, "'zulus'"),
    "unknown near miss": ("items.tsv", "xhosa, basotho", "xhosas, basotho", 0, "'xhosas'"),
    "related nobody": ("items.tsv", "\tzulu\t", "\t-\t", 0, "related is empty"),
    "related and near": ("items.tsv", "xhosa, basotho", "zulu, basotho", 0, "both related and a near miss"),
    "near twice": ("items.tsv", "xhosa, basotho", "xhosa, xhosa", 0, "names an identity twice"),
    "continent": ("items.tsv", "\tclothing\tAfrica", "\tclothing\tAfrika", 0, "'Afrika' is unknown"),
    "no source": ("items.tsv", "Wikipedia: Isicholo", "-", 0, "source is empty"),
    "contested": ("items.tsv", "\tno\tWikipedia: Isicholo", "\tperhaps\tWikipedia: Isicholo", 0, "yes or no"),
    "contested, no note": ("items.tsv", "\tno\tWikipedia: Isi", "\tyes\tWikipedia: Isi", 0, "needs a note"),
    "spaces for tabs": ("items.tsv", "\nkoshari\tfood", "\nkoshari  food", 1, "8 cells"),
    "header": ("items.tsv", "\tkind\t", "\tsort\t", 0, "the header is"),
    "no template": ("items.tsv", "isicholo\tclothing", "isicholo\thats", None, "no template to avoid"),
    "identity twice": ("identities.tsv", "\nkenyan\t", "\nmaasai\t", 1, "maasai was used in line"),
    "within oneself": ("identities.tsv", "\tkenyan, tanz", "\tmaasai, tanz", 0, "'maasai'"),
    "no group": ("identities.tsv", "\tEast African\t", "\t-\t", 0, "group is empty"),
    "no text of item": ("en.yaml", "  kimono: {text", "  kimonos: {text", None, "items.kimono.text"),
    "no text of person": ("en.yaml", "  zulu: ", "  zulus: ", None, "identities.zulu of en.yaml"),
    "text of nothing": ("en.yaml", "  zulu: ", "  zulus: x\n  zulu: ", 0, "nothing reads identities.zulus"),
    "section": ("en.yaml", "\nitems:\n", "\nitem: x\nitems:\n", 1, "nothing reads item;"),
    "empty text": ("en.yaml", '"a kimono"', '""', 0, "items.kimono.text is empty"),
    "same item text": ("en.yaml", '"a hanbok"', '"a kimono"', None, "'a kimono'"),
    "same person": ("en.yaml", '"the Kenyan person"', '"the Maasai person"', None, "has the text of"),
    "text twice": ("en.yaml", "  zulu: ", "  zulu: x\n  zulu: ", None, "was given in line"),
    "no item in stem": ("en.yaml", "premiere in {item}", "premiere in it", 0, "{item} exactly once"),
    "two in stem": ("en.yaml", "premiere in {item}", "premiere in {item}, {item}", 0, "{item} exactly once"),
    "item begins": ("en.yaml", "The jury of a craft prize that", "{item} waits, and", None, "exactly once"),
    "sentence begins": ("en.yaml", "to understand how {item}", "it. {item}", 0, "where a sentence begins"),
    "item in words": ("en.yaml", '"pho"', '"a"', None, "'a' stands"),
    "third polarity": ("en.yaml", "    avoid:", "    shun:", None, "is no template"),
    "option's mark": ("en.yaml", '"Both may do so', '"(c) Both may do so', 0, "an option's mark"),
    "no neither": ("en.yaml", ', neither: "Both may do so with equal right"', "", 0, "no text templates"),
    "broken YAML": ("en.yaml", '"a kimono"', '"a kimono', None, "no valid YAML"),
    "list": ("en.yaml", 'zulu: "the Zulu person"', "zulu: [the, person]", 0, "is no text and has no keys"),
    "half a wording": ("en.yaml", "\ntemplates:", '\nwording: {neutral: W}\ntemplates:', None, "wording"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_one_sentence_with_file_and_line(fault, tmp_path):
    copy = shutil.copytree(SHIPPED, tmp_path / "copy")
    name, old, new, below, said = FAULTS[fault]
    line = edit(copy / name, old, new)
    with pytest.raises(InputError) as error:
        read_culture(path=copy)
    message = str(error.value)
    assert said in message
    assert re.search(rf"{re.escape(str(copy))}\S+, line \d+: .+; .+\.\Z", message)
    assert "\n" not in message
    if below is not None:  # where the editor left off, or the line below the one that `old` began in
        assert f"{name}, line {line + below}: " in message


def test_files_that_are_no_table_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"has texts in ar, en, es, hi, zh and none in 'fr'; choose one of those"):
        read_culture("fr")
    with pytest.raises(InputError, match="no language"):
        read_culture(path=tmp_path / "nowhere")
    copy = shutil.copytree(SHIPPED, tmp_path / "copy")
    (copy / "items.tsv").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        read_culture(path=copy)
    (copy / "items.tsv").write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(InputError, match="the table is empty"):
        read_culture(path=copy)
    (copy / "items.tsv").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        read_culture(path=copy)
    (copy / "en.yaml").write_text("items: &all {more: *all}\n", encoding="utf-8")
    with pytest.raises(InputError, match="nested too deeply"):
        read_culture(path=copy)
