"""Tests of prompt files: all supported formats, and errors for other files."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from adt_core.app.prompts import (
    PROMPT_FILES,
    PromptEntry,
    blank_note,
    file_stems,
    non_blank,
    parse_lines,
    read_all,
    read_prompts,
    sample,
    select,
    slug,
)
from adt_core.errors import shown
from tests.raising import raises_key

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def saved(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(name, text, encoding="utf-8"):
        (tmp_path / name).write_bytes(text.encode(encoding))
        return tmp_path / name

    return write


def coco(*captions, **more) -> str:
    """Return the content of a file of MS-COCO with captions (image id, id, caption)."""
    names = "image_id", "id", "caption"
    return json.dumps({**more, "annotations": [dict(zip(names, caption)) for caption in captions]})


@pytest.mark.parametrize(
    "name, text, prompts",
    [
        ("p.txt", "\ufeffa cat \n\n  a dog\n", ["a cat", "a dog"]),
        (
            "PartiPrompts.tsv",
            'Prompt\tCategory\tChallenge\tNote\nbond\tAbstract\tBasic\t\na sign that says "Hi"\tWorld\tWriting\tx\n',
            ["bond", 'a sign that says "Hi"'],
        ),
        ("p.jsonl", '"a cat"\n\n{"prompt": "a dog", "id": 1}\n{"caption": "a cow"}\n', ["a cat", "a dog", "a cow"]),
        ("p.json", '["a cat", "a dog"]', ["a cat", "a dog"]),
    ],
)
def test_formats(saved, name, text, prompts):
    assert read_prompts(saved(name, text)) == prompts


@pytest.mark.parametrize("caption, expected", [("first", ["a cat", "dogs"]), ("longest", ["a cat on a mat", "dogs"])])
def test_coco_captions_one_per_image(saved, caption, expected):
    captions = (9, 4, "dogs"), (3, 7, "a cat on a mat"), (3, 2, "a cat\n")
    path = saved("captions_val2017.json", coco(*captions, images=[]))
    assert read_prompts(path, caption=caption) == expected
    assert [prompt.id for prompt in read_all(path, caption)] == ["3", "9"]
    everything = read_all(path, "all")
    assert [prompt[:2] for prompt in everything] == [("2", "a cat"), ("7", "a cat on a mat"), ("4", "dogs")]


ROWS = {
    "p.csv": 'prompt,size,Guidance_Scale,negative_prompt\na cat,512x768,,\na dog,,3.5,"blur, noise"\n',
    "p.jsonl": '{"prompt": "a cat", "size": [512, 768]}\n{"prompt": "a dog", "guidance_scale": 3.5, "negative_prompt": '
    '"blur, noise"}\n',
}


@pytest.mark.parametrize("name", ROWS)
def test_settings_of_single_prompts(saved, name):
    found = [dict(prompt.settings) for prompt in read_all(saved(name, ROWS[name]))]
    assert found == [{"size": (512, 768)}, {"guidance_scale": 3.5, "negative_prompt": "blur, noise"}]


@pytest.mark.parametrize(
    "column, value", [("size", "large"), ("size", "512"), ("guidance_scale", "high"), ("guidance_scale", "nan")]
)
def test_invalid_settings_of_single_prompts(saved, column, value):
    with raises_key("prompts.bad_format", reason=f"row 1, column '{column}' is '{value}'; expected: "):
        read_all(saved("p.csv", f"prompt,{column}\na cat,{value}\n"))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85"], ids=ascii)
def test_other_line_separators_are_part_of_a_prompt(saved, inside, end):
    """In JSON and in tables, these characters don't need an escape."""
    cat = f"a cat{inside}on a mat"
    texts = {
        "p.jsonl": [f'"{cat}"', '"a dog"'],
        "p.tsv": ["Prompt\tNote", f"{cat}\t", "a dog\t"],
        "p.txt": [cat, "a dog"],
    }
    for name, lines in texts.items():
        assert read_prompts(saved(name, end.join([*lines, ""]))) == [cat, "a dog"]
    assert [prompt.text for prompt in parse_lines(end.join(texts["p.txt"]))] == [cat, "a dog"]


@pytest.mark.parametrize(
    "name, text, key",
    [
        ("a.json", "{", "prompts.bad_format"),
        ("a.json", "[1]", "prompts.bad_format"),
        ("a.jsonl", "{}", "prompts.bad_format"),
        ("a.jsonl", "1", "prompts.bad_format"),
        ("a.tsv", "Text\tx\nhi\t1\n", "prompts.bad_format"),
        ("a.txt", " \n", "prompts.empty_file"),
        ("a.json", "[]", "prompts.empty_file"),
    ],
)
def test_invalid_files_are_reported(saved, name, text, key):
    with raises_key(key, path=name):
        read_prompts(saved(name, text))


def test_a_sample_depends_on_its_seed():
    prompts = [str(i) for i in range(50)]
    assert sample(prompts, 5, 1) == sample(prompts, 5, 1) != sample(prompts, 5, 2)
    assert sorted(sample(prompts, 99, 1)) == sorted(prompts)


def test_ids_are_read_or_line_numbers(saved):
    files = {
        "p.txt": ("a cat\n\na dog\n", "1", "3"),
        "p.json": ('["a cat", " ", "a dog"]', "1", "3"),
        "p.jsonl": ('{"prompt": "a cat", "id": "x/7"}\n\n"a dog"\n', "x/7", "3"),
        "p.tsv": ("Prompt\tNote\na cat\t\na dog\t\n", "1", "2"),
    }
    for name, (text, *ids) in files.items():
        found = non_blank(read_all(saved(name, text)))
        assert found == [PromptEntry(id, prompt) for id, prompt in zip(ids, ("a cat", "a dog"))], name
    assert parse_lines(" a cat\n\n \na dog \n") == [PromptEntry("1", "a cat"), PromptEntry("4", "a dog")]
    assert parse_lines(" \n") == []


def test_blank_prompts_are_reported(saved):
    """In a table or in JSON, a prompt without text is probably a mistake. Blank lines only separate prompts."""
    files = {
        "p.json": ('["", "a cat", " "]', ["1", "3"]),
        "coco.json": (coco((9, 1, " "), (3, 2, ""), (3, 3, "a cat")), ["9"]),
        "p.jsonl": ('{"prompt": " ", "id": "x/7"}\n\n"a dog"\n', ["x/7"]),
        "p.tsv": ("Prompt\tNote\na cat\t\n\n\t\n\t1\n", ["2"]),
    }
    for name, (text, blank) in files.items():
        found = read_all(saved(name, text))
        names = ", ".join(map(repr, blank))
        assert blank_note(found) == f"{len(blank)} of {len(found)} prompts are blank and were left out: {names}."
        assert [prompt.id for prompt in found if prompt not in non_blank(found)] == blank
    assert blank_note(read_all(saved("p.txt", "\na cat\n\n \na dog\n\n"))) == ""
    nine = read_all(saved("nine.json", json.dumps([""] * 9 + ["a"])))
    assert blank_note(nine).endswith("left out: '1', '2', '3', '4', '5' and others.")


def test_comments_in_plain_text_are_ignored():
    """The ids are still the numbers of the lines. A prompt may begin with "#"."""
    found = parse_lines("# houses\na house\n #\n#1 on a shirt\n  # the end")
    assert found == [PromptEntry("2", "a house"), PromptEntry("4", "#1 on a shirt")]


def test_the_first_non_blank_caption_is_used(saved):
    assert read_prompts(saved("coco.json", coco((3, 0, " "), (3, 1, "a cat"), (3, 2, "a dog")))) == ["a cat"]


@pytest.mark.parametrize(
    "seed, number",
    [(None, None), (7, 7), ("9", 9), (7.0, 7), ("1.2E+5", 120000), ("1234567890123456789", 1234567890123456789)],
)
def test_seeds_of_json(saved, seed, number):
    assert read_all(saved("p.jsonl", json.dumps({"prompt": "a cat", "seed": seed})))[0].seed == number


LOST = "has lost its last digits; store the column as text"
"""Spreadsheets and floating-point columns round large numbers; the image would have another seed than was meant."""


@pytest.mark.parametrize(
    "seed, reason",
    [
        *((seed, "a whole number") for seed in (-1, 1.5, True, "x", [1], 2**64, float("nan"))),
        *((seed, LOST) for seed in ("1.23457E+18", "1.23457e18", 1.23457e18, float(2**60))),
    ],
)
def test_invalid_seeds_of_json_are_reported(saved, seed, reason):
    with raises_key("prompts.bad_format", path="p.jsonl", reason=reason):
        read_all(saved("p.jsonl", json.dumps({"prompt": "a cat", "seed": seed})))


@pytest.mark.parametrize(
    "text, seed",
    [
        (str(2**64 - 1), 2**64 - 1),
        ("42", 42),
        ("42.0", 42),
        ('"1,234"', 1234),
        ('"18,446,744,073,709,551,615"', 2**64 - 1),
        (" 7 ", 7),
        ("0.0", 0),
        ("", None),
    ],
)
def test_seeds_of_a_table_in_any_notation(saved, text, seed):
    """Spreadsheet programs and pandas write whole numbers like this."""
    assert read_all(saved("p.csv", f"prompt,seed\na cat,{text}\n"))[0].seed == seed
    if seed is not None and seed < 2**53:
        assert read_all(saved("p.jsonl", json.dumps({"prompt": "a cat", "seed": float(seed)})))[0].seed == seed


@pytest.mark.parametrize(
    "text",
    ["nan", "NaN", "-1", "1.5", "1e-3", "inf", "1E+20", "1E+999999", '"1,2345"', '"12,34"', "x", "0x10", "9" * 5000],
)
def test_an_invalid_seed_of_a_table_is_named(saved, text):
    value = text.strip('"')
    reason = f"row 2, column 'seed' is {shown(value)}, but a whole number from 0 to 2**64 - 1 was expected"
    with raises_key("prompts.bad_format", path="p.csv", reason=reason):
        read_all(saved("p.csv", f"prompt,seed\na dog,3\na cat,{text}\n"))


@pytest.mark.parametrize("name", ["p.json", "p.jsonl"])
@pytest.mark.parametrize(
    "value, entry",
    [
        ("a cat", PromptEntry("2", "a cat")),
        (None, PromptEntry("2", "")),
        ({"prompt": "a cat"}, PromptEntry("2", "a cat")),
        ({"Prompt": " a cat ", "ID": 7, "Seed": 3}, PromptEntry("7", "a cat", 3)),
        ({"input": "a cat", "output": "x"}, PromptEntry("2", "a cat")),
        ({"text": "a cat", "id": None, "seed": None}, PromptEntry("2", "a cat")),
        ({"caption": "a dog", "prompt": "a cat"}, PromptEntry("2", "a cat")),
        ({"prompt": None}, PromptEntry("2", "")),
    ],
)
def test_values_of_json_lists(saved, name, value, entry):
    assert read_all(saved(name, _json_file(name, ["a house", value]))) == [PromptEntry("1", "a house"), entry]


@pytest.mark.parametrize("name, place", [("p.json", "entry 2"), ("p.jsonl", "line 2")])
@pytest.mark.parametrize(
    "value, words",
    [
        (5, " is 5, but a text was expected"),
        (["a cat"], " is ['a cat'], but a text was expected"),
        ({"prompt": {"en": "a cat"}}, ", key 'prompt' is {'en': 'a cat'}, but a text was expected"),
        ({"title": "a cat"}, " has none of the keys 'prompt', 'caption', 'text', 'input'"),
        ({"prompt": "a cat", "seed": "x"}, ", key 'seed' is 'x', but a whole number from 0 to 2**64 - 1"),
    ],
)
def test_other_values_of_json_lists_are_named(saved, name, place, value, words):
    with raises_key("prompts.bad_format", reason=place + words):
        read_all(saved(name, _json_file(name, ["a house", value])))


def _json_file(name, values):
    return json.dumps(values) if name == "p.json" else "\n".join(map(json.dumps, values))


def test_captions_of_coco_may_be_null(saved):
    assert read_all(saved("p.json", coco((5, 1, None), (5, 2, "a cat")))) == [PromptEntry("5", "a cat")]
    with raises_key("prompts.bad_format", reason="the caption 2 is 3, but a text was expected"):
        read_all(saved("p.json", coco((5, 1, None), (5, 2, 3))))


def test_selection():
    prompts = [PromptEntry(str(i), f"a {'Red' if i % 2 else 'blue'} car {i}") for i in range(20)]
    assert select(prompts) == select(prompts, count=0) == prompts
    assert [prompt.id for prompt in select(prompts, filter="red", start_index=2, count=3)] == ["5", "7", "9"]
    shuffled = select(prompts, shuffle_seed=1)
    assert sorted(shuffled) == sorted(prompts) and shuffled != prompts and shuffled != select(prompts, shuffle_seed=2)
    assert select(prompts, shuffle_seed=1, start_index=4, count=4) == shuffled[4:8], (
        "the selection must be a part of the same shuffled order"
    )


@pytest.mark.parametrize(
    "values, key", [({"filter": "cow"}, "filter.no_match"), ({"start_index": 2}, "start_index.too_large")]
)
def test_empty_selections_are_reported(values, key):
    with raises_key(key, count=2):
        select(parse_lines("a cat\na dog"), **values)


def test_a_list_of_comments_is_reported():
    with raises_key("prompts.none"):
        select(parse_lines("# a cat\n\n# a dog"))


def test_file_names():
    assert slug("A red car, on a (wet) street!") == "a-red-car-on-a-wet-street"
    assert slug("a " * 50) == "-".join("a" * 20) and slug("x" * 99) == "x" * 40 and slug("?!") == ""
    assert slug("../../etc/passwd") == "etc-passwd"
    stems = {("7", "a cat"): "007-a-cat", ("139", "dogs"): "139-dogs", ("x/7", "?"): "x-7", ("..", "/"): "prompt"}
    assert file_stems([PromptEntry(*entry) for entry in stems]) == list(stems.values())


# ---- tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
@pytest.mark.parametrize("name, sign", [("p.csv", ","), ("p.csv", ";"), ("p.csv", "\t"), ("p.tsv", "\t")])
def test_tables_with_quoted_cells(saved, name, sign, end):
    """In some languages, spreadsheet programs separate cells by semicolons."""
    rows = [
        f"ID{sign}Prompt{sign}note{sign} SEED ",
        f'a{sign}"a cat{sign} a ""red"" one"{sign}x{sign}7',
        f'{sign}"two{end}lines"{sign}{sign}',
        sign * 3,
        f"c{sign}a dog",
    ]
    assert read_all(saved(name, end.join(["\ufeff" + rows[0], *rows[1:], ""]))) == [
        PromptEntry("a", f'a cat{sign} a "red" one', 7),
        PromptEntry("2", "two\nlines"),
        PromptEntry("c", "a dog"),
    ]


def test_tables_with_only_prompts(saved):
    found = read_all(saved("p.csv", "caption\na cat\n\na dog\n"))
    assert found == [PromptEntry("1", "a cat"), PromptEntry("2", "a dog")]


@pytest.mark.parametrize("wording", ['"Hi" on a sign', '"Hi', 'a 5" pipe', '"Hi" and "Bye"'])
def test_quotation_marks_of_parti_prompts_are_kept(saved, wording):
    assert read_prompts(saved("p.tsv", f"Prompt\tCategory\n{wording}\tx\na cat\ty\n")) == [wording, "a cat"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("text,seed\na cat,1\n", "its columns are 'text', 'seed': name one of them 'prompt' or 'caption' in the first"),
        (
            "a cat\na dog\n",
            "its columns are 'a cat': name one of them 'prompt' or 'caption' in the first line; 'id' and",
        ),
        ("\n", "its columns are 'none'"),
        ("prompt\na cat, red\n", "row 1 has 2 cells, but the heading has 1: put text with commas in quotation marks"),
        ('prompt\n"Hi" on a sign\n', "; double every quotation mark inside quotation marks"),
        ('prompt\n"a cat\n', "line 2: unexpected end of data"),
        (f"prompt\n{'a' * 140000}\n", "line 2: field larger than field limit"),
    ],
)
def test_invalid_tables_are_reported(saved, text, words):
    with raises_key("prompts.bad_format", path="p.csv", reason=words) as caught:
        read_all(saved("p.csv", text))
    assert "\n" not in str(caught.value)


# ---- other files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p.txt", "p.csv", "p.tsv", "p.json", "p.jsonl", "p.md"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "latin-1"])
def test_other_encodings_are_rejected(saved, name, encoding):
    """UTF-16 without a byte order mark can be valid UTF-8 with null characters."""
    text = "a caf\xe9" if encoding == "latin-1" else "a cat"
    with raises_key("prompts.not_text", path=name, kind="kind.other_encoding"):
        read_all(saved(name, f"prompt\n{text}\n", encoding))


@pytest.mark.parametrize(
    "name, kind",
    [
        *((f"p.{kind}", f"kind.{kind.lower()}") for kind in ("docx", "DOCX", "xlsx", "odt", "zip")),
        ("p.txt", "kind.zip"),
    ],
)
def test_archives_are_rejected(tmp_path, name, kind):
    with zipfile.ZipFile(tmp_path / name, "w") as file:
        file.writestr("word/document.xml", "a cat")
    with raises_key("prompts.not_text", path=name, kind=kind):
        read_all(tmp_path / name)


@pytest.mark.parametrize(
    "name, content",
    [("p.txt", b"%PDF-1.7\n\xb5\xb6\n"), ("p.png", b"\x89PNG\r\n\x1a\n"), ("nul.txt", b"a cat\0")],
)
def test_other_files_are_rejected(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with raises_key("prompts.not_text", path=name):
        read_all(tmp_path / name)


def test_suffixes_of_the_node():
    assert set(PROMPT_FILES) == {".txt", ".json", ".jsonl", ".csv", ".tsv"}


# ---- Parquet ------------------------------------------------------------------------------------------------------


@pytest.fixture
def write_parquet(tmp_path):
    """Return a function that writes a Parquet table and returns its path."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write(**columns):
        parquet.write_table(pyarrow.table(columns), tmp_path / "p.parquet")
        return tmp_path / "p.parquet"

    return write


def test_parquet_tables(write_parquet):
    path = write_parquet(URL=["x", "y", "z"], Caption=[" a cat", None, "a dog"], id=[7, 8, None], seed=[None, 1, 2**62])
    found = [prompt[:3] for prompt in read_all(path)]
    assert found == [("7", "a cat", None), ("8", "", 1), ("3", "a dog", 2**62)]
    assert read_prompts(write_parquet(caption=["no"], prompt=["a cow"])) == ["a cow"]


def test_null_and_numbers_of_parquet_tables(write_parquet):
    found = read_all(write_parquet(Prompt=["a", None, "c"], id=[5, None, 7], seed=[1.0, None, 3.0]))
    assert found == [PromptEntry("5", "a", 1), PromptEntry("2", ""), PromptEntry("7", "c", 3)]


def test_equal_texts_of_a_small_parquet_table_are_not_copied(write_parquet):
    pyarrow = pytest.importorskip("pyarrow")
    one = pyarrow.array(["x" * 1_000_000])
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 50_000, pyarrow.int32()), one)
    before = pyarrow.total_allocated_bytes()
    with raises_key("prompts.bad_format", reason="its texts have more than 256 MiB: divide it"):
        read_all(write_parquet(prompt=column))
    assert pyarrow.total_allocated_bytes() - before < 300e6


@pytest.mark.parametrize(
    "columns",
    [{"prompt": [b"a"]}, {"prompt": [["a"]]}, {"prompt": [{"a": 1}]}, {"prompt": [1]}]
    + [{"prompt": ["a"], "id": [[1]]}, {"prompt": ["a"], "seed": [{"a": 1}]}, {"prompt": ["a"], "id": [b"1"]}],
)
def test_other_types_of_parquet_columns_are_refused(write_parquet, columns):
    with raises_key("prompts.bad_format", reason="has the type"):
        read_all(write_parquet(**columns))


def test_invalid_parquet_tables_are_reported(write_parquet, tmp_path, monkeypatch):
    for columns in ({"text": ["a cat"]}, {"prompt": [""]}, {"prompt": ["a"], "seed": [-1]}):
        with raises_key("prompts.empty_file" if columns == {"prompt": [""]} else "prompts.bad_format"):
            read_prompts(write_parquet(**columns))
    for content in (b"", b"PAR1 no table PAR1", (tmp_path / "p.parquet").read_bytes()[:-30]):
        (tmp_path / "p.parquet").write_bytes(content)
        with raises_key("prompts.bad_format", path="p.parquet"):
            read_prompts(tmp_path / "p.parquet")
    monkeypatch.setattr("adt_core.app.parquet.importlib.util.find_spec", lambda name: None)
    with raises_key("prompts.no_pyarrow", path="p.parquet", command="-m pip install pyarrow"):
        read_prompts(tmp_path / "p.parquet")


# ---- long lists ---------------------------------------------------------------------------------------------------


def write_list(path, count):
    """Write a list of prompts in the format of the suffix."""
    texts = [f"a red house number {number} next to a tree on a hill in the rain" for number in range(count)]
    if path.suffix == ".txt":
        path.write_text("\n".join(texts), encoding="utf-8")
    elif path.suffix == ".jsonl":
        lines = [json.dumps({"id": number, "prompt": text}) for number, text in enumerate(texts)]
        path.write_text("\n".join(lines), encoding="utf-8")
    elif path.suffix == ".json":
        annotations = [{"image_id": n, "id": 7 * n, "caption": text} for n, text in enumerate(texts)]
        path.write_text(json.dumps({"annotations": annotations}), encoding="utf-8")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"id": range(count), "prompt": texts}), path)


MEASURE = """
import sys, time
from pathlib import Path
from adt_core.app import generate
from adt_core.app.args import GenerateArgs, InputArgs, OutputArgs
from adt_core.recipe import Placement
sys.argv[2:] and __import__("pyarrow.parquet")
def peak():
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
before, began = peak(), time.process_time()
inputs = InputArgs(prompts=Path(sys.argv[1]))
plan = generate.plan(GenerateArgs(OutputArgs(output=Path("none")), inputs, placement=Placement("cpu")))
print(len(plan.jobs), time.process_time() - began, peak() - before)
"""
"""Script that plans a run. It prints the number of images, the processor time in seconds, and the increase of the peak
memory in MiB."""


@pytest.mark.long
@pytest.mark.runner
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".json", ".parquet"])
def test_long_lists_start_soon_and_need_little_memory(tmp_path, suffix):
    write_list(tmp_path / f"p{suffix}", 100_000)
    command = [
        sys.executable,
        "-c",
        MEASURE,
        str(tmp_path / f"p{suffix}"),
        *(["arrow"] if suffix == ".parquet" else []),
    ]
    out = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    count, seconds, memory = map(float, out)
    assert count == 100_000 and seconds < 2 and memory < 200
