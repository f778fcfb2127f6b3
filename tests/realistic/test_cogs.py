"""COGS: logical forms, what training leaves out, the official files."""

import concurrent.futures
import functools
import hashlib
import lzma
import os
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from short import SHORT

from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp.realistic import cogs, cogs_files
from anchor_interp.realistic.cogs import TASKS, Cogs, corpus_rows
from anchor_interp.realistic.cogs_corpus import GAPS, STRUCTURAL, TYPES, Row, own_corpus
from anchor_interp.realistic.cogs_files import FOLDER_VARIABLE, SHA256, official_rows
from anchor_interp.realistic.cogs_grammar import BEINGS, WORDS, logical_form, participle, past
from anchor_interp.runs.presets import preset
from anchor_interp.runs.train import train
from anchor_interp.tasks.contract import draw_examples

OFFICIAL = os.environ.get(FOLDER_VARIABLE)
OWN = Cogs(exposures=3)
LITTLE_WORDS = ("A", "The", "a", "the", "in", "on", "beside", "was", "by", "to", "that")
SPLITS = ("train", "id", "lexical", "structural")


def texts(task: Cogs, split: str, n: int, seed: int = 0) -> list[str]:
    """Examples as "sentence -> form <end>" lines."""
    drawn = draw_examples(task, split, n, seed=seed)
    rows = zip(drawn.tokens, drawn.lengths, strict=True)
    return [task.decode(row[:length]) for row, length in rows]


@pytest.mark.parametrize(
    ("sentence", "form"),
    [
        ("Mia slept .", "sleep . agent ( x _ 1 , Mia )"),
        ("The boy froze .", "* boy ( x _ 1 ) ; freeze . theme ( x _ 2 , x _ 1 )"),
        (
            "A lion froze the cake .",
            "* cake ( x _ 4 ) ; lion ( x _ 1 ) AND freeze . agent ( x _ 2 , x _ 1 ) "
            "AND freeze . theme ( x _ 2 , x _ 4 )",
        ),
        (
            "Mia fed a cat in the house on a rock to Leo .",
            "* house ( x _ 6 ) ; feed . agent ( x _ 1 , Mia ) AND feed . theme ( x _ 1 , x _ 3 ) "
            "AND feed . recipient ( x _ 1 , Leo ) AND cat ( x _ 3 ) "
            "AND cat . nmod . in ( x _ 3 , x _ 6 ) AND house . nmod . on ( x _ 6 , x _ 9 ) "
            "AND rock ( x _ 9 )",
        ),
        (
            "Leo sold Mia Lily .",
            "sell . agent ( x _ 1 , Leo ) AND sell . recipient ( x _ 1 , Mia ) "
            "AND sell . theme ( x _ 1 , Lily )",
        ),
        (
            "A cake was eaten by the dog .",
            "* dog ( x _ 6 ) ; cake ( x _ 1 ) AND eat . theme ( x _ 3 , x _ 1 ) "
            "AND eat . agent ( x _ 3 , x _ 6 )",
        ),
        (
            "Mia was handed a cake by Leo .",
            "hand . recipient ( x _ 2 , Mia ) AND hand . theme ( x _ 2 , x _ 4 ) "
            "AND hand . agent ( x _ 2 , Leo ) AND cake ( x _ 4 )",
        ),
        (
            "A cake was handed to Mia .",
            "cake ( x _ 1 ) AND hand . theme ( x _ 3 , x _ 1 ) "
            "AND hand . recipient ( x _ 3 , Mia )",
        ),
        (
            "The king planned to cry .",
            "* king ( x _ 1 ) ; plan . agent ( x _ 2 , x _ 1 ) AND plan . xcomp ( x _ 2 , x _ 4 ) "
            "AND cry . agent ( x _ 4 , x _ 1 )",
        ),
        (
            "Mia said that a dog hoped that the tv broke .",
            "* tv ( x _ 8 ) ; say . agent ( x _ 1 , Mia ) AND say . ccomp ( x _ 1 , x _ 5 ) "
            "AND dog ( x _ 4 ) AND hope . agent ( x _ 5 , x _ 4 ) "
            "AND hope . ccomp ( x _ 5 , x _ 9 ) AND break . theme ( x _ 9 , x _ 8 )",
        ),
        ("Paula", "Paula"),
        ("tiger", "LAMBDA a . tiger ( a )"),
        ("walk", "LAMBDA a . LAMBDA e . walk . agent ( e , a )"),
        ("roll", "LAMBDA a . LAMBDA e . roll . theme ( e , a )"),
        (
            "poke",
            "LAMBDA a . LAMBDA b . LAMBDA e . poke . agent ( e , b ) AND poke . theme ( e , a )",
        ),
    ],
)  # fmt: skip
def test_every_construction_has_its_form(sentence: str, form: str) -> None:
    assert logical_form(sentence) == form


@pytest.mark.parametrize("sentence", [
    "Mia sleep .", "the boy slept .", "The slept .", "Mia kissed The", "Mia found the",
    "Mia found the boy in", "Mia found the boy in Leo .", "Mia was ate .", "Mia wanted to slept .",
    "Mia slept", "Mia slept . .", "Mia said that", "Mia gave Leo Lily Ava .", "", "tigr", "give",
])  # fmt: skip
def test_what_is_not_of_the_grammar_has_no_form(sentence: str) -> None:
    with pytest.raises(LookupError):
        logical_form(sentence)


def test_irregular_verbs() -> None:
    forms = {
        verb: (past(verb), participle(verb)) for verb in ("eat", "bake", "try", "need", "slip")
    }
    assert forms == {
        "eat": ("ate", "eaten"),
        "bake": ("baked", "baked"),
        "try": ("tried", "tried"),
        "need": ("needed", "needed"),
        "slip": ("slipped", "slipped"),
    }


def test_the_sets_have_the_official_sizes() -> None:
    official = {"train": 24_155, "id": 3_000, "lexical": 18_000, "structural": 3_000}
    assert {s.name: s.size for s in TASKS["cogs-official"].splits} == official
    assert [s.role for s in OWN.splits] == ["train", "id", "ood", "ood"]
    for split in OWN.splits:
        assert split.size == len(corpus_rows(OWN, split.name))
        assert split.name == "train" or split.size == official[split.name]
    types = Counter(row.type for name in SPLITS for row in corpus_rows(OWN, name))
    assert types.pop("in_distribution") == 27_000
    assert types.pop("exposure") == 12 * 3
    assert types.pop("primitive") == 128 + 3 * 3
    assert types == dict.fromkeys(TYPES, 1_000)
    assert (len(GAPS), len(STRUCTURAL)) == (18, 3)


def test_no_sentence_is_in_two_splits_or_twice_in_one() -> None:
    sentences = [[row.sentence for row in corpus_rows(OWN, name)] for name in SPLITS]
    distinct = [{*found} for found in sentences]
    assert sum(map(len, distinct)) == len(set.union(*distinct))
    assert [len(found) for found in distinct[1:]] == [3_000, 18_000, 3_000]
    assert len(distinct[0]) == len(sentences[0]) - 2 * 3  # the held-out words by themselves


def test_every_variable_names_its_word() -> None:
    """The forms of our own sentences, read without the grammar."""
    for row in [row for name in SPLITS for row in corpus_rows(OWN, name)[::7]]:
        words, said = row.sentence.split(), set()
        for word, place in re.findall(r"(\w+) \( x _ (\d+) \)", row.form):
            assert words[int(place)] == word
            is_definite = f"* {word} ( x _ {place} )" in row.form
            assert (words[int(place) - 1].lower() == "the") == is_definite
            said.add(int(place))
        for verb, role, place in re.findall(
            r"(\w+) \. (?:nmod \. )?(\w+) \( x _ (\d+) ,", row.form
        ):
            assert words[int(place)] in (verb, past(verb), participle(verb)) or role in words
            said.add(int(place))
        rest = {word for place, word in enumerate(words[:-1]) if place not in said}
        names = {word for word in row.form.split() if word.istitle()}
        assert len(words) == 1 or rest <= {*LITTLE_WORDS, *names}


@functools.cache
def rows_of(split: str) -> dict[str, list[Row]]:
    """The rows of our own corpus by the words of their forms."""
    found = defaultdict[str, list[Row]](list)
    for row in corpus_rows(OWN, split):
        for word in {*row.form.split()}:
            found[word].append(row)
    return found


def use(row: Row, word: str) -> str:
    """How a sentence uses a word: a noun or name by its roles, a verb by the roles it gives."""
    if row.sentence == word:
        return "alone"
    places = [f"x _ {i}" for i, found in enumerate(row.sentence.split()) if found == word]
    roles = r"(\w+) \. (agent|theme|recipient) \( x _ \d+ , "
    has = re.findall(rf"{roles}(?:{'|'.join([*places, word])}) \)", row.form)
    gives = re.findall(rf"\b{word} \. (\w+) \(", row.form)
    alone = [len(re.findall(rf"\b{verb} \. ", row.form)) == 1 for verb, _ in has]
    return " ".join(
        [*gives, *(f"{role} {only}" for (_, role), only in zip(has, alone, strict=True))]
    )


@pytest.mark.parametrize("name", GAPS)
def test_a_held_out_word_has_its_new_use_in_gen_alone(name: str) -> None:
    word = GAPS[name].word
    shown = rows_of("train")[word]
    assert len(shown) == 3
    assert word not in rows_of("id")
    asked = [row for row in rows_of("lexical")[word] if row.type == name]
    assert len(asked) == 1_000
    assert not {use(row, word) for row in shown} & {use(row, word) for row in asked}


def depth(row: Row, what: str) -> int:
    return row.form.count(f" . {what} ")


def test_the_structural_types_go_beyond_training() -> None:
    train = [*corpus_rows(OWN, "train"), *corpus_rows(OWN, "id")]
    gen = {name: [r for r in corpus_rows(OWN, "structural") if r.type == name] for name in TYPES}
    for name, what in (("cp_recursion", "ccomp"), ("pp_recursion", "nmod")):
        assert {depth(row, what) for row in train} == {0, 1, 2}
        assert {depth(row, what) for row in gen[name]} >= {*range(3, 13)}
        assert min(depth(row, what) for row in gen[name]) == 3
    before_verb = re.compile(
        rf"(?:^|that )(?:A|The|a|the) (?:{'|'.join(BEINGS)}) (?:in|on|beside) "
    )
    assert all(before_verb.search(row.sentence) for row in gen["obj_pp_to_subj_pp"])
    assert not any(before_verb.search(row.sentence) for row in train)


def test_examples_are_the_rows_with_a_token_for_each_digit() -> None:
    expected = Counter(  # the rows of other splits are made alike
        f"{row.sentence} -> {re.sub(r'(?<=[0-9])(?=[0-9])', ' ', row.form)} <end>"
        for row in corpus_rows(OWN, "structural")
    )
    assert Counter(texts(OWN, "structural", 3_000)) == expected
    drawn = draw_examples(OWN, "structural", 50, seed=0)
    assert any(re.search(r"\b1 2\b", OWN.decode(answer)) for answer in drawn.answers())
    assert {word for word in OWN.words if word.isdigit()} == {*"0123456789"}
    assert len({*OWN.words}) == len(OWN.words) == len(WORDS) + 2


def test_our_own_sentences_never_change() -> None:
    rows = ["\t".join(row) for name in SPLITS for row in corpus_rows(OWN, name)]
    found = hashlib.sha256("\n".join(rows).encode()).hexdigest()
    assert found[:16] == "1da3026fb6476c8e"


def test_aspects_tell_the_type_and_the_length() -> None:
    drawn = draw_examples(OWN, "structural", 300, seed=0)
    found = OWN.aspects(drawn)
    forms = [OWN.decode(answer).removesuffix(" <end>") for answer in drawn.answers()]
    assert list(found["length"]) == [len(form.split()) for form in forms]
    for answer, kind in zip(drawn.answers(), found["type"], strict=True):
        form = OWN.decode(answer)
        deeper = [t for t, w in (("cp_", "ccomp"), ("pp_", "nmod")) if form.count(w) > 2]
        assert str(kind).startswith(deeper[0] if deeper else "obj_pp")
    assert {*OWN.aspects(draw_examples(OWN, "lexical", 500, seed=1))["type"]} == {*GAPS}
    for split in ("train", "id"):
        assert {*OWN.aspects(draw_examples(OWN, split, 500, seed=0))["type"]} == {"in distribution"}


def test_one_preset_fits_both_corpora() -> None:
    for data in ("own", "official"):
        config = preset("cogs", data=data)
        assert (config.model.d_vocab, config.model.n_ctx) == (config.task.n_tokens, 600)
    longest = max(int(draw_examples(OWN, s, 3_000, seed=0).lengths.max()) for s in SPLITS)
    assert longest <= 601


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of files such as the official ones, of three sentences each, and an empty cache."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name, rows in own_corpus(3).items():
        lines = [*rows[:2], Row("A TV froze .", logical_form("A tv froze ."), rows[0].type)]
        data = "".join("\t".join(line) + "\n" for line in lines).encode()
        (folder / f"{name}.tsv").write_bytes(data)
        monkeypatch.setitem(SHA256, name, hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(cogs_files, "SOURCE", folder.as_uri())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(cogs_files, "official_rows", official_rows.__wrapped__)
    return folder


def test_files_of_a_folder_plain_or_compressed(
    files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(files))
    packed = files / "train.tsv.xz"
    packed.write_bytes(lzma.compress((files / "train.tsv").read_bytes()))
    (files / "train.tsv").unlink()
    expected = [row[:2] for row in own_corpus(3)["train"][:2]]
    found = cogs_files.official_rows("train")
    assert [row[:2] for row in found[:2]] == expected
    assert found[2][:2] == ("A tv froze .", logical_form("A tv froze ."))
    assert len(cogs_files.official_rows("gen")) == 3
    assert not (tmp_path / "cache").exists()


def test_files_are_fetched_once(files: Path, tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(cogs_files.official_rows, ["test"] * 16))
    assert all(rows == found[0] for rows in found)
    cache = tmp_path / "cache" / "anchor-interp" / "cogs"
    assert [path.name for path in cache.iterdir()] == ["test.tsv"]
    (files / "test.tsv").unlink()
    assert cogs_files.official_rows("test") == found[0]
    (cache / "test.tsv").write_text("A\tb\tc\n")
    with pytest.raises(ConfigError, match=r"official test.tsv: its SHA-256 is .*remove it and"):
        cogs_files.official_rows("test")


def test_wrong_files_are_one_clear_line(
    files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def message() -> str:
        with pytest.raises(AnchorInterpError) as caught:
            cogs_files.official_rows("train")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (files / "train.tsv").write_text("two\tcolumns\n")
    assert "train.tsv is not the official train.tsv: its SHA-256" in message()
    assert not (tmp_path / "cache").exists()  # nothing wrong is kept
    monkeypatch.setattr(cogs_files, "SOURCE", "http://127.0.0.1:9/data")
    assert re.search(r"cannot fetch .*refused.*with a network, or name a folder", message())
    monkeypatch.setenv(FOLDER_VARIABLE, str(files))
    (files / "train.tsv").unlink()
    assert "train.tsv.xz: No such file or directory; put the files" in message()
    (files / "train.tsv.xz").write_text("plain")
    assert "train.tsv.xz is damaged" in message()
    (files / "train.tsv").mkdir()
    assert "train.tsv: Is a directory" in message()


def test_a_wrong_file_leaves_no_run_behind(
    files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cogs, "official_rows", cogs_files.official_rows)
    (files / "train.tsv").write_text("two\tcolumns\n")
    config = preset("cogs", data="official", exposures=2, **SHORT)
    with pytest.raises(ConfigError, match=r"is not the official train.tsv: its SHA-256"):
        train(config, tmp_path / "run", device="cpu", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(OFFICIAL is None, reason=f"{FOLDER_VARIABLE} names no folder")
@pytest.mark.parametrize(
    ("name", "rows"), [("train", 24_155), ("dev", 3_000), ("test", 3_000), ("gen", 21_000)]
)
def test_every_official_sentence_has_its_official_form(name: str, rows: int) -> None:
    found = official_rows(name)
    assert len(found) == rows
    assert [row for row in found if logical_form(row.sentence) != row.form] == []


@pytest.mark.skipif(OFFICIAL is None, reason=f"{FOLDER_VARIABLE} names no folder")
def test_the_official_splits() -> None:
    task, seen = TASKS["cogs-official"], set[bytes]()
    for split in task.splits:
        assert split.size is not None
        drawn = draw_examples(task, split.name, split.size, seed=0)
        sentences = {
            row[:start].tobytes() for row, start in zip(drawn.tokens, drawn.starts, strict=True)
        }
        assert len(sentences) == split.size
        assert not seen & sentences
        seen |= sentences
    assert int(drawn.lengths.max()) == task.length + 1
    assert Counter(row.type for row in official_rows("gen")) == dict.fromkeys(TYPES, 1_000)
