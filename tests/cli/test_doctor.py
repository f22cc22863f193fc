from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from timonel.binding.forms import Form
from timonel.binding.letters_mass import describe_mass, letters_mass
from timonel.binding.sampling import sample
from timonel.binding.score import score_pairs
from timonel.binding.sources import read_pairs
from timonel.engine import Engine
from timonel.models import fingerprint, load
from timonel.steer import _edges
from tiny import tiny_folder, word_tokenizer

Timonel = Callable[..., Any]


def test_a_ready_model(timonel: Timonel, chat_model: Path) -> None:
    said = timonel("doctor", chat_model)
    assert (said.code, said.complaints) == (0, [])
    lines = said.out.splitlines()
    assert lines[-1] == "ready"
    print_ = fingerprint(*load(chat_model))
    for words in (
        "LlamaForCausalLM", "3, hidden size 32", "4 / 2 (group 2)", "sdpa", "none: every layer sees all keys",
        "float32, cpu", "written by the template; 1 in front of a plain text, 1 of a chat prompt", print_,
        "Answer letters: they hold",
    ):  # fmt: skip
        assert words in said.out
    tests = [line.split()[:2] for line in lines if " pass " in line]
    assert tests == [[name, "pass"] for name in ("action", "identity", "causality", "cut", "cache", "padding")]


def test_as_json(timonel: Timonel, tiny_model: Path) -> None:
    said = timonel("doctor", tiny_model, "--json", "--dtype", "float64")
    assert (said.code, said.complaints) == (0, [])
    found = said.json
    assert found["ready"] is True
    assert found["verdict"] == "ready"
    assert found["checkpoint"]["heads"] == [4, 4, 4]
    assert found["checkpoint"]["windows"] == [None] * 3
    assert found["checkpoint"]["chat_template"] is False
    assert found["checkpoint"]["bos"]["plain"] == 1
    assert [one["passed"] for one in found["self_tests"]] == [True] * 6
    assert max(one["difference"] for one in found["self_tests"]) < 1e-12
    assert 0 < found["letters_mass"] < 1


def test_a_failed_self_test_is_exit_code_1_and_says_what_to_do(timonel: Timonel, tiny_model: Path) -> None:
    softmax = _edges._softmax
    with mock.patch.object(_edges, "_softmax", lambda scores: softmax(1.01 * scores)):
        said = timonel("doctor", tiny_model)
        found = timonel("doctor", tiny_model, "--json")
    assert (said.code, said.complaints) == (1, [])
    assert said.out.splitlines()[-1].startswith("not ready: the cut test failed (")
    assert [line.split()[:2] for line in said.out.splitlines() if " FAIL " in line] == [["cut", "FAIL"]]
    assert found.code == 1
    assert found.json["ready"] is False


def test_a_fault_of_the_models_own(timonel: Timonel, tmp_path: Path) -> None:
    """Gemma 2 runs eagerly, and in float64 transformers' eager attention makes NaN of left pads."""
    said = timonel("doctor", tiny_folder(tmp_path / "gemma2", "gemma2"), "--dtype", "float64")
    assert said.code == 1
    assert "the model fails the padding test without any plan" in said.out.splitlines()[-1]


def test_what_is_not_supported_is_exit_code_2(timonel: Timonel, tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "gpt2"
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=200, bos_token_id=1, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    said = timonel("doctor", folder)
    assert (said.code, said.out) == (2, "")
    assert "c_attn is a Conv1D" in said.sentence
    assert timonel("doctor", tmp_path / "absent").code == 2
    assert "dtype 'int8'" in timonel("doctor", tiny_model, "--dtype", "int8").sentence


def test_letters_mass_is_that_of_the_letters_form(chat_model: Path) -> None:
    model, tokenizer = load(chat_model)
    engine = Engine(model, tokenizer)
    (asked,) = score_pairs(engine, Form(tokenizer, "letters", "base"), sample(read_pairs("culture").pairs, 3, 0), "S")
    expected = np.median(np.exp(np.concatenate([asked.match, asked.mismatch])).sum(axis=1))
    assert letters_mass(engine, tokenizer, wrap="base", questions=3) == pytest.approx(expected, abs=1e-12)
    assert letters_mass(engine, tokenizer, questions=3) == letters_mass(engine, tokenizer, wrap="instruct", questions=3)


def test_the_mass_in_words() -> None:
    assert describe_mass(0.94).endswith(
        "94% of the probability (median over 6 questions), so the letters form can be used"
    )
    assert "under 50%, so the cloze form (--form cloze)" in describe_mass(0.2)
    assert "2e-05 of 1" in describe_mass(0.00002)


def test_a_tokenizer_without_letters_is_told(timonel: Timonel, tiny_model: Path) -> None:
    with mock.patch("timonel.binding.forms.letter_tokens", side_effect=_no_letters):
        said = timonel("doctor", tiny_model, "--json")
    assert said.code == 0
    assert said.json["letters_mass"] is None
    assert "no token for the letter" in said.json["letters_remark"]


def _no_letters(_: Any) -> Any:
    from timonel.errors import InputError

    raise InputError("This tokenizer has no token for the letter 'a', ...")
