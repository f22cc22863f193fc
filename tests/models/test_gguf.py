import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from oracles.gguf_file import model as source_model
from oracles.gguf_file import write
from timonel.errors import InputError
from timonel.models import Geometry, fingerprint, load

IDS = torch.arange(20)[None] + 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_gives_the_very_model_it_was_made_from(file: Path) -> None:
    model, _ = load(file)
    expected = source_model()(IDS).logits
    assert not model.training
    assert torch.equal(model(IDS).logits, expected)
    assert Geometry.of(model) == Geometry.of(source_model())


def test_nothing_says_quantised_and_it_can_be_cast_saved_and_read_again(file: Path, tmp_path: Path) -> None:
    model, tokenizer = load(file, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert not hasattr(model, "hf_quantizer")
    assert not getattr(model, "is_quantized", False)
    assert "quantization_config" not in model.config.to_dict()
    model.float().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert "quant" not in (tmp_path / "config.json").read_text()
    again, words = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert fingerprint(again, words) == fingerprint(model, tokenizer)


def test_the_tokenizer_splits_digits_first_as_llama_cpp_does(file: Path, tmp_path: Path) -> None:
    _, tokenizer = load(file)
    # Digits stand alone before GPT-2's pattern is applied, so the two blanks before one stay together ("ĠĠ").
    assert tokenizer.tokenize("a  12 the") == ["a", "ĠĠ", "1", "2", "Ġ", "the"]
    _, plain = load(write(tmp_path / "plain.gguf", split="gpt-2"))
    assert plain.tokenize("a  12 the") == ["a", "Ġ", "Ġ", "1", "2", "Ġ", "the"]
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.tokenize("a  12 the") == ["a", "ĠĠ", "1", "2", "Ġ", "the"]


def test_special_tokens_and_the_chat_template_come_along(file: Path) -> None:
    _, tokenizer = load(file)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer("a").input_ids == tokenizer("a", add_special_tokens=False).input_ids  # add_bos_token is false
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "an"}], tokenize=False)
    assert chat == "<|im_start|>an<|im_end|>"
    ids = tokenizer(chat, add_special_tokens=False).input_ids
    assert ids[0] == 1
    assert ids[-1] == 2


LOST = {
    "a head size that transformers skips": (
        {"attention__key_length": 16},
        "attention.key_length = 16, .* head_dim = 8",
    ),
    "scaled rotary frequencies": ({"rope__scaling__type": "yarn"}, "scales its rotary frequencies"),
    "rotary factors": ({"tensor_rope_freqs": [1, 2, 3, 4]}, "scales its rotary frequencies"),
    "an unknown rule for splitting": ({"split": "nosuch"}, "splits its text by the rule 'nosuch'"),
}


@pytest.mark.parametrize("what", LOST)
def test_what_would_be_lost_in_reading_is_refused(what: str, tmp_path: Path) -> None:
    extra, reason = LOST[what]
    with pytest.raises(InputError, match=f"odd.gguf {'says' if 'says' in reason else ''}.*{reason}"):
        load(write(tmp_path / "odd.gguf", **extra))


def test_half_a_file_and_no_file_are_refused(file: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.gguf"
    half.write_bytes(file.read_bytes()[:5000])
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a gguf" * 100)
    for path in (half, other):
        with pytest.raises(InputError, match=f"{path.name} is not a whole GGUF file"):
            load(path)
    with pytest.raises(InputError, match=re.escape(f"there is no file {tmp_path / 'none.gguf'}")):
        load(tmp_path / "none.gguf")


def test_cutting_the_weights_short_is_refused(file: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(file.read_bytes()[:-4096])
    with pytest.raises(InputError, match=r"short\.gguf"):
        load(short)
