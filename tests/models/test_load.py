import importlib
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from timonel.errors import InputError
from timonel.models import catalog, load
from tiny import ARCHITECTURES, tiny, tiny_folder, word_tokenizer

IDS = torch.arange(20)[None] + 20
module = importlib.import_module("timonel.models.load")  # the package's face has the function of that name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_gives_the_model_that_was_saved(architecture: str, tmp_path: Path) -> None:
    model, tokenizer = load(tiny_folder(tmp_path, architecture, chat=True))
    assert not model.training
    assert torch.equal(model(IDS).logits, tiny(architecture)(IDS).logits)
    if architecture != "qwen2":  # transformers reads its tokenizer by Qwen's own rule of splitting
        assert tokenizer("is a kimono").input_ids == word_tokenizer()("is a kimono").input_ids
    assert tokenizer.chat_template == word_tokenizer(chat=True).chat_template


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("fp16", torch.float16),
        ("float64", torch.float64),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_dtypes_are_read_from_names_and_from_torch(asked: str | torch.dtype, got: torch.dtype, tmp_path: Path) -> None:
    model, _ = load(tiny_folder(tmp_path), dtype=asked)
    assert {p.dtype for p in model.parameters()} == {got}
    assert model(IDS).logits.dtype == got


def test_auto_is_the_dtype_of_the_checkpoint(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, dtype=torch.bfloat16)
    assert load(folder, dtype="auto")[0].dtype == torch.bfloat16
    assert load(folder)[0].dtype == torch.float32


def test_ties_generation_config_and_gradients_are_kept(tmp_path: Path) -> None:
    model = tiny("qwen2")
    model.generation_config = GenerationConfig(eos_token_id=[2, 7], pad_token_id=0, repetition_penalty=1.5)
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    loaded, _ = load(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert loaded.generation_config.eos_token_id == [2, 7]
    assert loaded.generation_config.repetition_penalty == 1.5
    assert all(p.requires_grad for p in loaded.parameters())


def test_the_attention_implementation_can_be_chosen(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    for name in ("eager", "sdpa"):
        assert load(folder, attn_implementation=name)[0].config._attn_implementation == name
    with pytest.raises(InputError, match="cannot be loaded") as refusal:
        load(folder, attn_implementation="nosuch")
    assert "\n" not in str(refusal.value)


def test_auto_places_the_model_by_itself(tmp_path: Path) -> None:
    model, _ = load(tiny_folder(tmp_path), device="auto")
    assert torch.equal(model(IDS.to(model.device)).logits.cpu(), tiny("llama")(IDS).logits) or torch.cuda.is_available()


def test_a_catalog_name_wins_over_a_folder_of_that_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pinned = tiny_folder(tmp_path / "pinned", "qwen3")
    monkeypatch.setattr(catalog, "get", lambda name: pinned)
    monkeypatch.chdir(tmp_path)
    tiny_folder(tmp_path / "smollm2-135m", "llama")
    assert type(load("smollm2-135m")[0]).__name__ == "Qwen3ForCausalLM"
    assert type(load("./smollm2-135m")[0]).__name__ == "LlamaForCausalLM"


def test_an_unknown_name_is_refused_with_the_names_that_are_known() -> None:
    with pytest.raises(InputError, match=r"'smolm2' is no model .*smollm2-135m, gemma3-270m"):
        load("smolm2")
    for path in ("/no/such/folder", "./here/not", "a/b/c"):
        with pytest.raises(InputError, match=r"is no model that is known here: .*a folder that exists"):
            load(path)


def test_a_folder_without_config_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json: give the folder"):
        load(tmp_path)
    (tmp_path / "m.gguf").touch()
    with pytest.raises(InputError, match=r"no config\.json: name the file .*m\.gguf"):
        load(tmp_path)


def test_a_broken_checkpoint_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    check_refused(folder, "cannot be loaded")
    (folder / "model.safetensors").unlink()
    check_refused(folder, "cannot be loaded")
    (folder / "config.json").write_text("{not json")
    check_refused(folder, "cannot be loaded")


def check_refused(name: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refusal:
        load(name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("dtype", ["int8", "half", "", torch.int8, None, 16])
def test_a_dtype_that_nothing_is_computed_in_is_refused(dtype: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give float32, bfloat16, float16, float64 or auto"):
        load(tmp_path, dtype=dtype)


@pytest.mark.parametrize(("device", "reason"), [("gpu", "is no device"), ("cuda:99", "no device 'cuda:99'")])
def test_a_device_that_is_not_there_is_refused(device: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        load(tmp_path, device=device)


class Trap:
    """Unpickles by creating a file: what a hostile checkpoint would do, harmless."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


def test_a_pickle_is_read_for_weights_alone(tmp_path: Path) -> None:
    folder, sprung = tiny_folder(tmp_path / "folder"), tmp_path / "sprung"
    (folder / "model.safetensors").unlink()
    torch.save(tiny("llama").state_dict(), folder / "pytorch_model.bin")
    assert torch.equal(load(folder)[0](IDS).logits, tiny("llama")(IDS).logits)
    torch.save({"model.norm.weight": Trap(sprung)}, folder / "pytorch_model.bin")
    check_refused(folder, "cannot be loaded")
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # the trap works where it is let


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    folder, sprung = tiny_folder(tmp_path / "folder"), tmp_path / "sprung"
    (folder / "modeling.py").write_text(f"from pathlib import Path\nPath({str(sprung)!r}).touch()\n")
    (folder / "config.json").write_text(
        '{"model_type": "foreign", "auto_map": {"AutoConfig": "modeling.C", "AutoModelForCausalLM": "modeling.M"}}'
    )
    check_refused(folder, "code of its own, which is never run")
    assert not sprung.exists()


def test_an_unreachable_hub_is_one_sentence_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    asked: list[Any] = []
    read = module.AutoTokenizer.from_pretrained
    monkeypatch.setattr(module.urllib.request, "getproxies", dict)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(module.socket, "getaddrinfo", nowhere)
    monkeypatch.setattr(
        module.AutoTokenizer,
        "from_pretrained",
        lambda name, **options: (asked.append(options), read(name, **options)),
    )
    check_refused("nobody/no-such-model", "nobody/no-such-model could not be had from the model hub")
    # Else transformers would try five times for each file, for half a minute.
    assert asked == [{"trust_remote_code": False, "local_files_only": True}]


def test_the_hub_is_asked_only_where_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(module.socket, "getaddrinfo", lambda host, port: asked.append(host))
    monkeypatch.setattr(module.urllib.request, "getproxies", dict)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert not module._offline()
    assert asked == ["huggingface.co"]
    monkeypatch.setattr(module.urllib.request, "getproxies", lambda: {"https": "proxy:1"})
    assert not module._offline()  # the proxy resolves names, not this machine
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert module._offline()
    assert asked == ["huggingface.co"]
