"""The front door, and what it says of bad input: one sentence, exit 2, nothing written."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from timonel import __version__

Timonel = Callable[..., Any]

COMMANDS = ("demo", "models", "bind", "score", "cut", "runs")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_the_commands(timonel: Timonel, arguments: tuple[str, ...]) -> None:
    said = timonel(*arguments)
    assert (said.code, said.err) == (0, "")
    for command in COMMANDS:
        assert command in said.out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(timonel: Timonel, command: str) -> None:
    said = timonel(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert f"timonel {command}" in said.out


def test_version(timonel: Timonel) -> None:
    assert timonel("--version").out == f"timonel {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["bind", "--help"], ["score", "m", "missing.jsonl"], ["cut", "m", "x", "--top", "0"]],
)
def test_torch_is_loaded_only_where_it_is_needed(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from timonel.cli.main import run\n"
        f"code = run({arguments})\n"
        "heavy = {name.partition('.')[0] for name in sys.modules} & {'torch', 'transformers', 'scipy', 'sklearn'}\n"
        "print(f'heavy {sorted(heavy)} code {code}', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr.splitlines()[-1].startswith("heavy [] code "), done.stderr


# Bad input. {model}, {chat} and {tmp} are filled in.


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


BIND = ["bind", "{model}", "--pairs", "3", "--out", "{tmp}/run"]
BAD: dict[str, tuple[list[str], str]] = {
    "no command": (["fly"], "fly"),
    "no model": (["bind", "--out", "{tmp}/run"], "Missing argument 'model'. (see timonel bind --help)"),
    "no out": (["bind", "{model}"], "--out"),
    "unknown option": ([*BIND, "--haeds", "L1H1"], "--haeds"),
    "unknown model": (["bind", "smollm3", "--out", "{tmp}/run"], "'smollm3' is no model"),
    "a folder without a model": (["bind", "{tmp}", "--out", "{tmp}/run"], "config.json"),
    "a missing gguf": (["bind", "{tmp}/x.gguf", "--out", "{tmp}/run"], "there is no file"),
    "missing file": ([*BIND, "--data", "n4:{tmp}/missing.pkl"], "missing.pkl"),
    "a pickle that is not N4": ([*BIND, "--data", "n4:{tmp}/other.pkl"], "other.pkl"),
    "a hostile pickle": ([*BIND, "--data", "n4:{tmp}/hostile.pkl"], "hostile.pkl"),
    "not a pickle": ([*BIND, "--data", "n4:{tmp}/file"], "file"),
    "unknown data": ([*BIND, "--data", "n5"], "culture, n4:PATH"),
    "no data path": ([*BIND, "--data", "n4:"], "culture, n4:PATH"),
    "unknown language": ([*BIND, "--lang", "xx"], "xx"),
    "a layer outside": ([*BIND, "--heads", "L3H0"], "layer 3"),
    "a head outside": ([*BIND, "--heads", "L0H4"], "L0H4"),
    "not a head": ([*BIND, "--heads", "eight"], "'eight' is not a head"),
    "a head twice": ([*BIND, "--heads", "L0H1,0.1"], "L0H1 is named 2 times"),
    "zero pairs": (["bind", "{model}", "--pairs", "0", "--out", "{tmp}/run"], "0 pairs"),
    "fewer than zero pairs": (["bind", "{model}", "--pairs", "-2", "--out", "{tmp}/run"], "-2"),
    "half a pair": (["bind", "{model}", "--pairs", "2.5", "--out", "{tmp}/run"], "'--pairs'"),
    "limit zero": ([*BIND, "--limit", "0"], "--limit"),
    "negative seed": ([*BIND, "--seed", "-1"], "--seed"),
    "no tokens a batch": ([*BIND, "--batch-tokens", "0"], "--batch-tokens"),
    "unknown form": ([*BIND, "--form", "essay"], "--form is 'essay'"),
    "unknown wrap": ([*BIND, "--wrap", "gift"], "--wrap is 'gift'"),
    "unknown rows": ([*BIND, "--rows", "all"], "--rows is 'all'"),
    "rows of letters": ([*BIND, "--form", "letters", "--rows", "writing"], "--rows writing"),
    "unknown stage": ([*BIND, "--stages", "score,guess"], "--stages is 'guess'"),
    "no score": ([*BIND, "--stages", "knockout"], "leaves out score"),
    "no chat template": ([*BIND, "--wrap", "instruct"], "no chat template"),
    "unknown dtype": ([*BIND, "--dtype", "int8"], "int8"),
    "unknown device": ([*BIND, "--device", "tpu"], "tpu"),
    "out is a file": (["bind", "{model}", "--pairs", "3", "--out", "{tmp}/file"], "cannot be written"),
    "out below a file": (["bind", "{model}", "--pairs", "3", "--out", "{tmp}/file/run"], "cannot be written"),
    "out where nothing can be": (["bind", "{model}", "--pairs", "3", "--out", "/proc/run"], "cannot be written"),
    "out is taken": (["bind", "{model}", "--pairs", "3", "--out", "{tmp}"], "holds no run"),
    "config missing": ([*BIND, "--config", "{tmp}/no.yaml"], "cannot be read"),
    "config of bytes": ([*BIND, "--config", "{tmp}/other.pkl"], "it is no text"),
    "config not YAML": ([*BIND, "--config", "{tmp}/broken.yaml"], "not valid YAML"),
    "config not JSON": ([*BIND, "--config", "{tmp}/broken.json"], "not valid JSON"),
    "config without options": ([*BIND, "--config", "{tmp}/list.yaml"], "holds no options"),
    "config with another option": ([*BIND, "--config", "{tmp}/other.yaml"], "the option 'haeds'"),
    "config with a wrong value": (
        ["bind", "{model}", "--out", "{tmp}/run", "--config", "{tmp}/value.yaml"],
        "'--pairs'",
    ),
    "an unbound span": (["cut", "{model}", "the [[to:tea]] is good"], "'from'"),
    "the other span": (["cut", "{model}", "the [[from:tea]] is good"], "'to'"),
    "spans the wrong way round": (["cut", "{model}", "[[from:tea]] is [[to:good]]"], "before it"),
    "a mark left open": (["cut", "{model}", "the [[to:tea is good"], "never closed"),
    "chat without a template": (["cut", "{model}", "[[to:tea]] is [[from:good]]", "--chat"], "no chat template"),
    "cut at a head outside": (["cut", "{model}", "[[to:tea]] is [[from:good]]", "--heads", "L7H0"], "layer 7"),
    "alpha not finite": (["cut", "{model}", "[[to:tea]] is [[from:good]]", "--alpha", "nan"], "finite"),
    "no rows": (["cut", "{model}", "[[to:tea]] is [[from:good]]", "--top", "0"], "--top is 0"),
    "spans in JSON": (["cut", "{model}", "[[to:tea]] is [[from:it]]", "--show-spans", "--json"], "--json"),
    "prompts missing": (["score", "{model}", "{tmp}/no.jsonl"], "cannot be read"),
    "prompts of bytes": (["score", "{model}", "{tmp}/other.pkl"], "it is no text"),
    "prompts empty": (["score", "{model}", "{tmp}/empty.jsonl"], "is empty"),
    "prompts not JSON": (["score", "{model}", "{tmp}/broken.jsonl"], "line 3, is not JSON"),
    "prompts of other things": (["score", "{model}", "{tmp}/other.jsonl"], "line 1, is not a prompt"),
    "prompts with an empty answer": (["score", "{model}", "{tmp}/answer.jsonl"], "'answer'"),
    "score limit zero": (["score", "{model}", "{tmp}/good.jsonl", "--limit", "0"], "--limit"),
    "a table of another kind": (["score", "{model}", "{tmp}/good.jsonl", "--out", "{tmp}/x.txt"], ".csv or .parquet"),
    "a table nowhere": (["score", "{model}", "{tmp}/good.jsonl", "--out", "{tmp}/no/x.csv"], "cannot be written"),
    "runs in no folder": (["runs", "{tmp}/nowhere"], "not a folder"),
    "get an unknown model": (["models", "get", "smollm3"], "not in the catalog"),
    "clean an unknown model": (["models", "clean", "smollm3"], "not in the catalog"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "other.pkl").write_bytes(pickle.dumps({"\xfe": b"\xff\x00" * 9}))
    (tmp_path / "hostile.pkl").write_bytes(pickle.dumps(Bomb()))
    texts = {
        "file": "mine",
        "broken.yaml": "pairs: [1,\nheads: }\n",
        "broken.json": "{",
        "list.yaml": "- pairs\n",
        "other.yaml": "pairs: 3\nhaeds: L1H1\n",
        "value.yaml": "pairs: many\n",
        "empty.jsonl": "\n \n",
        "broken.jsonl": '{"prompt": "the tea"}\n\n{"prompt": \n',
        "other.jsonl": '{"prompt": "the tea", "answer": "x"}\n',
        "answer.jsonl": '{"prompt": "the tea", "answers": [""]}\n',
        "good.jsonl": '{"prompt": "the tea"}\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("what", BAD)
def test_bad_input(timonel: Timonel, tiny_model: Path, place: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.chdir(place)
    arguments, words = BAD[what]
    before = {file: file.read_bytes() for file in place.rglob("*")}
    said = timonel(*(one.format(model=tiny_model, tmp=place) for one in arguments))
    assert said.code == 2
    assert words in said.sentence
    assert said.out == ""
    assert {file: file.read_bytes() for file in place.rglob("*")} == before


def test_one_line_whatever_a_message_looks_like(capsys: pytest.CaptureFixture[str]) -> None:
    from timonel.cli.console import complain

    complain("first\nsecond\r\nthird")
    assert capsys.readouterr().err == "timonel: first second third\n"


def test_faults_of_ours_keep_their_traceback(
    timonel: Timonel, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("timonel.models.load", break_down)
    with pytest.raises(RuntimeError, match="ours"):
        timonel("cut", tiny_model, "[[to:tea]] is [[from:good]]")


def test_a_reader_that_leaves_early_is_told_nothing(tmp_path: Path) -> None:
    code = "import sys; from timonel.cli.main import run; sys.exit(run(['--help']))"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
