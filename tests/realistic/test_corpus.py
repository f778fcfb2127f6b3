"""Corpora: the same tokens whatever interrupts their making, windows without copies, errors."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.lock import Lock
from anchor_interp.realistic import corpus_sources, corpus_tokens
from anchor_interp.realistic.corpus import Corpus
from anchor_interp.realistic.corpus_tokenizers import END, byte_words
from anchor_interp.tasks.contract import draw_examples


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "anchor-interp" / "corpus"
    corpus_tokens._opened.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty files of code and ten of prose, all different."""
    root = tmp_path / "texts"
    root.mkdir()
    for number in range(30):
        lines = [f"value_{number}_{line} = {number * line}" for line in range(40)]
        (root / f"m{number}.py").write_text("\n".join(lines))
    for number in range(10):
        text = f"Chapter {number}. " + "The fox is quick; é and 漢 are letters. " * 20
        (root / f"c{number}.md").write_text(text, encoding="utf-8")
    return root


def tokens_of(corpus: Corpus) -> dict[str, list[int]]:
    corpus_tokens._opened.cache_clear()
    return {name: tokens.tolist() for name, tokens in corpus._tokens.sets.items()}


def texts_of(corpus: Corpus, name: str) -> list[str]:
    """The documents of a set."""
    return corpus.decode(tokens_of(corpus)[name]).split(END)[:-1]


def test_every_file_is_in_one_part_whole(folder: Path) -> None:
    corpus = Corpus(source=f"folder:{folder}", length=16)
    train, held_out = texts_of(corpus, "train"), texts_of(corpus, "held-out")
    assert sorted(train + held_out) == sorted(
        path.read_text(encoding="utf-8") for path in folder.iterdir()
    )
    assert held_out
    code = Corpus(source=f"folder:{folder}", part="code", length=16)
    assert set(texts_of(code, "train")) < set(train)
    assert set(texts_of(code, "other")) < set(held_out)
    assert [split.name for split in code.splits] == ["train", "held-out", "prose"]
    (folder / "m3.py").rename(folder / "m3b.py")  # another name may be in another part
    (folder / "new.py").write_text("x = 1\n" * 50)
    later = texts_of(corpus, "train") + texts_of(corpus, "held-out")
    both = set(train) & set(texts_of(corpus, "held-out"))
    assert len(later) == 41
    assert len(both) <= 1  # what kept its name kept its part


def test_the_standard_library_is_a_corpus_on_every_machine() -> None:
    corpus = Corpus(limit=60_000, length=64)
    assert [split.name for split in corpus.splits] == ["train", "held-out"]
    text = corpus.decode(tokens_of(corpus)["train"])
    assert "def " in text
    assert '"""' not in text.split("def ")[1]
    assert len(tokens_of(corpus)["train"]) == 60_000


def test_windows_are_views_that_predict_every_token_once(folder: Path) -> None:
    corpus = Corpus(source=f"folder:{folder}", length=32)
    whole = corpus._tokens.sets["train"]
    n = corpus.splits[0].size
    assert n is not None
    drawn = draw_examples(corpus, "train", n, seed=3)
    assert np.shares_memory(drawn.tokens, whole)
    assert drawn.mask.strides[0] == drawn.lengths.strides[0] == 0
    assert drawn.tokens[:, 1:].ravel().tolist() == whole[1 : 32 * n + 1].tolist()
    few = draw_examples(corpus, "held-out", 5, seed=0)
    assert (few.tokens == draw_examples(corpus, "held-out", 9, seed=0).tokens[:5]).all()
    assert (few.tokens != draw_examples(corpus, "held-out", 5, seed=1).tokens).any()
    again = draw_examples(corpus, "train", 2 * n, seed=0)
    assert (again.tokens[n:] == again.tokens[:n]).all()


def test_bytes_of_tokens_are_those_of_the_text(folder: Path, tmp_path: Path) -> None:
    for tokenizer, vocabulary in (("bytes", 257), ("bpe", 320)):
        corpus = Corpus("corpus", f"folder:{folder}", "both", tokenizer, vocabulary, 16)
        drawn = draw_examples(corpus, "held-out", 20, seed=0)
        for row, n_bytes in zip(drawn.tokens, corpus.n_bytes(drawn), strict=True):
            words = [corpus.words[token] for token in row[1:]]
            assert n_bytes == sum(len(word) for word in words if word != END)
        text = "def é(漢):\n\treturn 1"
        assert corpus.written(corpus.encode(text)) == text
    assert len(set(byte_words())) == 256
    assert len(corpus.encode("value_")) < len("value_")  # pairs were merged


def test_a_stream_stopped_anywhere_goes_on_at_the_same_token(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(source=f"folder:{folder}", length=16, limit=12_000)
    expected, digest = tokens_of(corpus), corpus.data
    monkeypatch.setattr(corpus_tokens, "COMMIT", 700)
    append, write = corpus_tokens._Writer.append, files.write_json
    for patience in (1, 3, 8):  # documents or commits until the next death
        left = [patience]

        def due(left: list[int] = left, patience: int = patience) -> bool:
            left[0] -= 1
            left[0] = left[0] if left[0] >= 0 else patience
            return left[0] == 0

        def dying(self: Any, *args: Any, due: Callable[[], bool] = due) -> None:
            if due():
                for path in self.folder.glob("*.bin"):
                    with open(path, "ab") as file:
                        file.write(b"bytes of a commit that was not finished")
                raise KeyboardInterrupt
            append(self, *args)

        def stopping(path: Path, data: Any, due: Callable[[], bool] = due) -> None:
            if path.name == "state.json" and due():
                raise KeyboardInterrupt  # the tokens are written, and do not count
            write(path, data)

        for path in cache.glob("*/*"):
            path.unlink()
        monkeypatch.setattr(corpus_tokens._Writer, "append", dying)
        monkeypatch.setattr(files, "write_json", stopping)
        deaths, found = 0, None
        while found is None and deaths < 100:
            try:
                found = tokens_of(corpus)
            except KeyboardInterrupt:
                deaths += 1
        monkeypatch.setattr(corpus_tokens._Writer, "append", append)
        monkeypatch.setattr(files, "write_json", write)
        assert deaths
        assert tokens_of(corpus) == expected
        assert corpus.data == digest


def rows_of(kinds: int = 60) -> list[dict[str, Any]]:
    names = ("RedPajamaGithub", "RedPajamaWikipedia", "RedPajamaC4")
    return [
        {"text": f"row {number} " * 30, "meta": {"redpajama_set_name": names[number % 3]}}
        for number in range(kinds)
    ]


def test_a_download_that_fails_goes_on_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    import datasets

    def stream(fails_at: int) -> Any:
        def generate() -> Iterator[dict[str, Any]]:
            for number, row in enumerate(rows_of()):
                if number == fails_at:
                    raise ConnectionError("the network is unreachable\nsecond line")
                read.append(number)
                yield row

        return datasets.IterableDataset.from_generator(generate)

    read: list[int] = []
    corpus = Corpus(source="hub:cerebras/SlimPajama-627B", part="code", length=16, limit=5_000)
    monkeypatch.setattr(corpus_sources, "hub_rows", lambda _: stream(10**9))
    expected = tokens_of(corpus)
    assert {"train", "held-out", "other"} == set(expected)
    assert "row 0 " in corpus.decode(expected["train"] + expected["held-out"])
    texts = [corpus.decode(tokens) for tokens in expected.values()]
    assert not any("row 2 " in text for text in texts)  # another set of SlimPajama

    for path in cache.glob("*/*"):
        path.unlink()
    monkeypatch.setattr(corpus_tokens, "COMMIT", 500)
    monkeypatch.setattr(corpus_sources, "hub_rows", lambda _: stream(0))
    with pytest.raises(ConfigError, match=r"cannot read .* \(ConnectionError: .*unreachable\)"):
        tokens_of(corpus)
    assert not list(cache.glob("*/*"))  # nothing half written
    monkeypatch.setattr(corpus_sources, "hub_rows", lambda _: stream(25))
    with pytest.raises(ConfigError, match="goes on where it stopped"):
        tokens_of(corpus)
    (state,) = cache.glob("*/state.json")
    assert json.loads(state.read_text())["tokens"]["train"] > 0
    monkeypatch.setattr(corpus_sources, "hub_rows", lambda _: stream(10**9))
    assert tokens_of(corpus) == expected


def test_without_a_network_the_hub_is_one_clear_line(tmp_path: Path) -> None:
    program = (
        "from anchor_interp.realistic.corpus import Corpus\n"
        "Corpus(source='hub:nobody/nothing').splits"
    )
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | offline, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    last = done.stderr.strip().splitlines()[-1]
    assert "ConfigError: cannot read nobody/nothing from the Hugging Face hub" in last
    assert not list((tmp_path / "cache").rglob("*.bin"))


def rename_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.rename(path.with_suffix(".png"))


def empty_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(b"")


def keep_one(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "m1.py":
            path.unlink()


def written(data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "m1.py").write_bytes(data)


Fields = Callable[[Path], dict[str, Any]]
UNREADABLE: dict[str, tuple[Callable[[Path], object] | None, Fields, str]] = {
    "missing": (None, lambda f: {"source": f"folder:{f}/nowhere"}, "is not a folder; name one"),
    "file": (None, lambda f: {"source": f"folder:{f}/m1.py"}, "is not a folder; name one"),
    "source": (None, lambda _: {"source": "standard"},
               "expected 'stdlib', 'folder:PATH' or 'hub:OWNER/NAME'"),
    "pictures": (rename_all, lambda _: {},
                 "has 0 files of text, such as .py and .md; expected two"),
    "empty": (empty_all, lambda _: {}, "has no text to train on"),
    "one": (keep_one, lambda _: {}, "has 1 files of text, .* expected two"),
    "binary": (written(b"\x7fELF\x00\x01\xff"), lambda _: {},
               r"m1.py is not UTF-8 text: .* position 6: invalid start byte"),
    "nul": (written(b"a = 1\x00"), lambda _: {},
            "m1.py holds a NUL character, so it is not text; remove it or convert it"),
    "short": (None, lambda _: {"length": 8_000},
              "a window needs 8,001: give more text, lower task.length or raise task.limit"),
    "bytes": (None, lambda _: {"vocabulary": 300}, "task.vocabulary is 300; expected 257 with by"),
    "merges": (None, lambda _: {"tokenizer": "bpe", "vocabulary": 50_257},
               "task.vocabulary 50,257: lower it to"),
    "no tokenizer": (None, lambda f: {"tokenizer": f"{f}/tokenizer.json", "vocabulary": 300},
                     "No such file .*; expected 'bytes', 'bpe' or a tokenizer.json"),
    "no json": (None, lambda f: {"tokenizer": f"{f}/m1.py", "vocabulary": 300},
                "is not a tokenizer.json"),
}  # fmt: skip
"""What is changed in the folder, the fields of the corpus, and the message."""


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_one_clear_line(folder: Path, cache: Path, case: str) -> None:
    change, fields, says = UNREADABLE[case]
    if change is not None:
        change(folder)
    with pytest.raises(ConfigError, match=says) as caught:
        assert Corpus(**{"source": f"folder:{folder}", "length": 16, **fields(folder)}).splits
    assert "\n" not in str(caught.value)
    if case != "short":
        assert not list(cache.glob("*/corpus.json"))
        assert not list(cache.glob("*/*.bin"))


def with_tokenizer(folder: Path, tokenizer: str | Path, vocabulary: int = 320) -> Corpus:
    return Corpus("corpus", f"folder:{folder}", "both", str(tokenizer), vocabulary, 16)


@pytest.fixture
def learned(folder: Path, cache: Path) -> Any:
    """A learned tokenizer of 320 tokens, to be changed."""
    import tokenizers

    assert with_tokenizer(folder, "bpe").splits
    (path,) = cache.rglob("tokenizer.json")
    return tokenizers.Tokenizer.from_file(str(path))


def test_a_tokenizer_neither_truncates_nor_adds_tokens(
    folder: Path, tmp_path: Path, learned: Any
) -> None:
    """As files of the Hugging Face hub often do; documents are taken whole."""
    from tokenizers.processors import TemplateProcessing

    own = tmp_path / "own.json"
    expected = tokens_of(with_tokenizer(folder, "bpe"))
    learned.save(str(own))
    assert tokens_of(with_tokenizer(folder, own)) == expected
    end = learned.token_to_id(END)
    learned.enable_truncation(20)
    learned.enable_padding(length=50, pad_token=END, pad_id=end)
    learned.post_processor = TemplateProcessing(single=f"{END} $A", special_tokens=[(END, end)])
    learned.save(str(own))
    assert tokens_of(with_tokenizer(folder, own)) == expected


def test_a_tokenizer_of_another_kind_is_refused(folder: Path, tmp_path: Path, learned: Any) -> None:
    from tokenizers import normalizers, pre_tokenizers

    own, saved = tmp_path / "own.json", json.loads(learned.to_str())

    def refused(message: str, vocabulary: int = 320) -> None:
        with pytest.raises(ConfigError, match=message):
            assert with_tokenizer(folder, own, vocabulary).splits

    learned.save(str(own))
    refused(r"has 320 tokens; task\.vocabulary is 400: make", 400)
    told = copy.deepcopy(saved)
    told["added_tokens"] = []
    del told["model"]["vocab"][END]
    told["model"]["vocab"]["two words"] = 0
    own.write_text(json.dumps(told))
    refused("has the token 'two words'; expected byte-level tokens")
    vocabulary = saved["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.__getitem__)] += 7
    own.write_text(json.dumps(saved))
    refused("tokens up to 326 with gaps; expected 0 to 319")
    for normalizer in (normalizers.Lowercase(), normalizers.NFC(), normalizers.NFKD()):
        learned.normalizer = normalizer
        learned.save(str(own))
        refused("expected one that gives text back, without norm")
    learned.normalizer = None
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    learned.save(str(own))
    refused(r"makes ' A b.* or space in front")


def test_a_complete_corpus_need_not_be_writable(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(source=f"folder:{folder}", length=16)
    expected = tokens_of(corpus)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Lock, "acquire", refused)
    assert tokens_of(corpus) == expected
    (folder / "new.py").write_text("x = 1\n" * 50)
    with pytest.raises(StoreError, match=r"read-only; make it .* another folder in XDG_CACHE_HOME"):
        tokens_of(corpus)


def test_docstrings_go_whole_whatever_the_line_ends() -> None:
    """A form feed ends no line of Python."""
    source = 'import a\n\x0c\nx = "\u2028"\r\ndef f():\n    """Say."""\n    return 1\n'
    found = corpus_sources._parted(source.encode())
    expected = 'import a\n\x0c\nx = "\u2028"\r\ndef f():\n    return 1\n'
    assert found == {"code": expected, "prose": "Say."}


def test_a_damaged_cache_is_refused(folder: Path, cache: Path) -> None:
    corpus = Corpus(source=f"folder:{folder}", length=16)
    tokens_of(corpus)
    (path,) = cache.glob("*/train.bin")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(StoreError, match=r"train.bin is damaged; remove .* read again"):
        tokens_of(corpus)
