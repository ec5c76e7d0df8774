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


def test_plain_text(tmp_path):
    (tmp_path / "p.txt").write_text("\ufeffa cat \n\n  a dog\n", encoding="utf-8")
    assert read_prompts(tmp_path / "p.txt") == ["a cat", "a dog"]


@pytest.mark.parametrize("caption, expected", [("first", ["a cat", "dogs"]), ("longest", ["a cat on a mat", "dogs"])])
def test_coco_captions_one_per_image(tmp_path, caption, expected):
    annotations = [
        {"image_id": 9, "id": 4, "caption": "dogs"},
        {"image_id": 3, "id": 7, "caption": "a cat on a mat"},
        {"image_id": 3, "id": 2, "caption": "a cat\n"},
    ]
    (tmp_path / "captions_val2017.json").write_text(
        json.dumps({"images": [], "annotations": annotations}), encoding="utf-8"
    )
    assert read_prompts(tmp_path / "captions_val2017.json", caption=caption) == expected
    assert [prompt.id for prompt in read_all(tmp_path / "captions_val2017.json", caption)] == ["3", "9"]
    everything = read_all(tmp_path / "captions_val2017.json", "all")
    assert [prompt[:2] for prompt in everything] == [("2", "a cat"), ("7", "a cat on a mat"), ("4", "dogs")]


def test_parti_prompts(tmp_path):
    (tmp_path / "PartiPrompts.tsv").write_text(
        'Prompt\tCategory\tChallenge\tNote\nbond\tAbstract\tBasic\t\na sign that says "Hi"\tWorld\tWriting\tx\n',
        encoding="utf-8",
    )
    assert read_prompts(tmp_path / "PartiPrompts.tsv") == ["bond", 'a sign that says "Hi"']


def test_json_lines_and_lists(tmp_path):
    (tmp_path / "p.jsonl").write_text(
        '"a cat"\n\n{"prompt": "a dog", "id": 1}\n{"caption": "a cow"}\n', encoding="utf-8"
    )
    assert read_prompts(tmp_path / "p.jsonl") == ["a cat", "a dog", "a cow"]
    (tmp_path / "p.json").write_text('["a cat", "a dog"]', encoding="utf-8")
    assert read_prompts(tmp_path / "p.json") == ["a cat", "a dog"]


ROWS = {
    "p.csv": 'prompt,size,Guidance_Scale,negative_prompt\na cat,512x768,,\na dog,,3.5,"blur, noise"\n',
    "p.jsonl": '{"prompt": "a cat", "size": [512, 768]}\n{"prompt": "a dog", "guidance_scale": 3.5, "negative_prompt": '
    '"blur, noise"}\n',
}


@pytest.mark.parametrize("name", ROWS)
def test_settings_of_single_prompts(tmp_path, name):
    (tmp_path / name).write_text(ROWS[name], encoding="utf-8")
    found = [dict(prompt.settings) for prompt in read_all(tmp_path / name)]
    assert found == [{"size": (512, 768)}, {"guidance_scale": 3.5, "negative_prompt": "blur, noise"}]


@pytest.mark.parametrize(
    "column, value", [("size", "large"), ("size", "512"), ("guidance_scale", "high"), ("guidance_scale", "nan")]
)
def test_invalid_settings_of_single_prompts(tmp_path, column, value):
    (tmp_path / "p.csv").write_text(f"prompt,{column}\na cat,{value}\n", encoding="utf-8")
    with raises_key("prompts.bad_format", reason=f"row 1, column '{column}' is '{value}'; expected: "):
        read_all(tmp_path / "p.csv")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85"], ids=ascii)
def test_other_line_separators_are_part_of_a_prompt(tmp_path, inside, end):
    """In JSON and in tables, these characters don't need an escape."""
    cat = f"a cat{inside}on a mat"
    texts = {
        "p.jsonl": [f'"{cat}"', '"a dog"'],
        "p.tsv": ["Prompt\tNote", f"{cat}\t", "a dog\t"],
        "p.txt": [cat, "a dog"],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_bytes(end.join([*lines, ""]).encode())
        assert read_prompts(tmp_path / name) == [cat, "a dog"]
    assert [prompt.text for prompt in parse_lines(end.join(texts["p.txt"]))] == [cat, "a dog"]


@pytest.mark.parametrize(
    "name, text, key",
    [
        ("a.json", "{", "prompts.bad_format"),
        ("a.json", "{}", "prompts.bad_format"),
        ("a.json", '{"annotations": [1]}', "prompts.bad_format"),
        ("a.json", "[1]", "prompts.bad_format"),
        ("a.jsonl", "{}", "prompts.bad_format"),
        ("a.jsonl", "1", "prompts.bad_format"),
        ("a.tsv", "Text\tx\nhi\t1\n", "prompts.bad_format"),
        ("a.txt", " \n", "prompts.empty_file"),
        ("a.json", "[]", "prompts.empty_file"),
    ],
)
def test_invalid_files_are_reported(tmp_path, name, text, key):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with raises_key(key, path=name):
        read_prompts(tmp_path / name)


def test_a_sample_depends_on_its_seed():
    prompts = [str(i) for i in range(50)]
    assert sample(prompts, 5, 1) == sample(prompts, 5, 1) != sample(prompts, 5, 2)
    assert sorted(sample(prompts, 99, 1)) == sorted(prompts)


def test_ids_are_read_or_line_numbers(tmp_path):
    files = {
        "p.txt": "a cat\n\na dog\n",
        "p.json": '["a cat", " ", "a dog"]',
        "p.jsonl": '{"prompt": "a cat", "id": "x/7"}\n\n"a dog"\n',
        "p.tsv": "Prompt\tNote\na cat\t\na dog\t\n",
    }
    found = {}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        found[name] = non_blank(read_all(tmp_path / name))
    assert {name: [prompt.text for prompt in prompts] for name, prompts in found.items()} == dict.fromkeys(
        files, ["a cat", "a dog"]
    )
    assert {name: [prompt.id for prompt in prompts] for name, prompts in found.items()} == {
        "p.txt": ["1", "3"],
        "p.json": ["1", "3"],
        "p.jsonl": ["x/7", "3"],
        "p.tsv": ["1", "2"],
    }
    assert parse_lines(" a cat\n\n \na dog \n") == [PromptEntry("1", "a cat"), PromptEntry("4", "a dog")]
    assert parse_lines(" \n") == []


def test_blank_prompts_are_reported(tmp_path):
    """In a table or in JSON, a prompt without text is probably a mistake. Blank lines only separate prompts."""
    annotations = [
        {"image_id": 9, "id": 1, "caption": " "},
        {"image_id": 3, "id": 2, "caption": ""},
        {"image_id": 3, "id": 3, "caption": "a cat"},
    ]
    files = {
        "p.json": ('["", "a cat", " "]', ["1", "3"]),
        "coco.json": (json.dumps({"annotations": annotations}), ["9"]),
        "p.jsonl": ('{"prompt": " ", "id": "x/7"}\n\n"a dog"\n', ["x/7"]),
        "p.tsv": ("Prompt\tNote\na cat\t\n\n\t\n\t1\n", ["2"]),
    }
    for name, (text, blank) in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        found = read_all(tmp_path / name)
        names = ", ".join(map(repr, blank))
        assert blank_note(found) == f"{len(blank)} of {len(found)} prompts are blank and were left out: {names}."
        assert [prompt.id for prompt in found if prompt not in non_blank(found)] == blank
    (tmp_path / "p.txt").write_text("\na cat\n\n \na dog\n\n", encoding="utf-8")
    assert blank_note(read_all(tmp_path / "p.txt")) == ""
    (tmp_path / "nine.json").write_text(json.dumps([""] * 9 + ["a"]), encoding="utf-8")
    assert blank_note(read_all(tmp_path / "nine.json")).endswith("left out: '1', '2', '3', '4', '5' and others.")


def test_comments_in_plain_text_are_ignored():
    """The ids are still the numbers of the lines. A prompt may begin with "#"."""
    found = parse_lines("# houses\na house\n #\n#1 on a shirt\n  # the end")
    assert found == [PromptEntry("2", "a house"), PromptEntry("4", "#1 on a shirt")]


def test_the_first_non_blank_caption_is_used(tmp_path):
    annotations = [{"image_id": 3, "id": id, "caption": text} for id, text in enumerate([" ", "a cat", "a dog"])]
    (tmp_path / "coco.json").write_text(json.dumps({"annotations": annotations}), encoding="utf-8")
    assert read_prompts(tmp_path / "coco.json") == ["a cat"]


def test_seeds_of_a_list(tmp_path):
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "a cat", "seed": 7}\n"a dog"\n{"prompt": "a cow", "seed": "9"}\n', encoding="utf-8"
    )
    (tmp_path / "p.tsv").write_text(f"Prompt\tSeed\na cat\t{2**64 - 1}\na dog\t\n", encoding="utf-8")
    assert [prompt.seed for prompt in read_all(tmp_path / "p.jsonl")] == [7, None, 9]
    assert [prompt.seed for prompt in read_all(tmp_path / "p.tsv")] == [2**64 - 1, None]


@pytest.mark.parametrize("seed", ["-1", "1.5", "true", '"x"', "[1]", str(2**64), "NaN"])
def test_invalid_seeds_are_reported(tmp_path, seed):
    (tmp_path / "p.jsonl").write_text(f'{{"prompt": "a cat", "seed": {seed}}}\n', encoding="utf-8")
    with raises_key("prompts.bad_format", path="p.jsonl"):
        read_all(tmp_path / "p.jsonl")


@pytest.mark.parametrize(
    "text, seed",
    [
        ("42", 42),
        ("42.0", 42),
        ('"1,234"', 1234),
        ('"18,446,744,073,709,551,615"', 2**64 - 1),
        (" 7 ", 7),
        ("0.0", 0),
        ("", None),
    ],
)
def test_seeds_of_a_table_in_any_notation(tmp_path, text, seed):
    """Spreadsheet programs and pandas write whole numbers like this."""
    assert listed(tmp_path, "p.csv", f"prompt,seed\na cat,{text}\n")[0].seed == seed
    if seed is not None and seed < 2**53:
        assert listed(tmp_path, "p.jsonl", json.dumps({"prompt": "a cat", "seed": float(seed)}))[0].seed == seed


@pytest.mark.parametrize(
    "text",
    ["nan", "NaN", "-1", "1.5", "1e-3", "inf", "1E+20", "1E+999999", '"1,2345"', '"12,34"', "x", "0x10", "9" * 5000],
)
def test_an_invalid_seed_of_a_table_is_named(tmp_path, text):
    value = text.strip('"')
    place = f"row 2, column 'seed' is {shown(value)}"
    with raises_key("prompts.bad_format", reason=f"{place}, but a whole number from 0 to 2**64 - 1 was expected"):
        listed(tmp_path, "p.csv", f"prompt,seed\na dog,3\na cat,{text}\n")


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
def test_values_of_json_lists(tmp_path, name, value, entry):
    assert listed(tmp_path, name, _json_file(name, ["a house", value])) == [PromptEntry("1", "a house"), entry]


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
def test_other_values_of_json_lists_are_named(tmp_path, name, place, value, words):
    with raises_key("prompts.bad_format", reason=place + words):
        listed(tmp_path, name, _json_file(name, ["a house", value]))


def _json_file(name, values):
    return json.dumps(values) if name == "p.json" else "\n".join(map(json.dumps, values))


def test_captions_of_coco_may_be_null(tmp_path):
    captions = [{"id": 1, "image_id": 5, "caption": None}, {"id": 2, "image_id": 5, "caption": "a cat"}]
    assert listed(tmp_path, "p.json", json.dumps({"annotations": captions})) == [PromptEntry("5", "a cat")]
    captions[1]["caption"] = 3
    with raises_key("prompts.bad_format", reason="the caption 2 is 3, but a text was expected"):
        listed(tmp_path, "p.json", json.dumps({"annotations": captions}))


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
    assert file_stems(
        [PromptEntry("7", "a cat"), PromptEntry("139", "dogs"), PromptEntry("x/7", "?"), PromptEntry("..", "/")]
    ) == [
        "007-a-cat",
        "139-dogs",
        "x-7",
        "prompt",
    ]


# ---- tables ------------------------------------------------------------------------------------------


def listed(tmp_path, name, text, encoding="utf-8"):
    (tmp_path / name).write_bytes(text.encode(encoding))
    return read_all(tmp_path / name)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
@pytest.mark.parametrize("name, sign", [("p.csv", ","), ("p.csv", ";"), ("p.csv", "\t"), ("p.tsv", "\t")])
def test_tables_with_quoted_cells(tmp_path, name, sign, end):
    """In some languages, spreadsheet programs separate cells by semicolons."""
    rows = [
        f"ID{sign}Prompt{sign}note{sign} SEED ",
        f'a{sign}"a cat{sign} a ""red"" one"{sign}x{sign}7',
        f'{sign}"two{end}lines"{sign}{sign}',
        sign * 3,
        f"c{sign}a dog",
    ]
    found = listed(tmp_path, name, end.join(["\ufeff" + rows[0], *rows[1:], ""]))
    assert found == [
        PromptEntry("a", f'a cat{sign} a "red" one', 7),
        PromptEntry("2", "two\nlines"),
        PromptEntry("c", "a dog"),
    ]


def test_tables_with_only_prompts(tmp_path):
    assert [prompt[:2] for prompt in listed(tmp_path, "p.csv", "caption\na cat\n\na dog\n")] == [
        ("1", "a cat"),
        ("2", "a dog"),
    ]


@pytest.mark.parametrize("wording", ['"Hi" on a sign', '"Hi', 'a 5" pipe', '"Hi" and "Bye"'])
def test_quotation_marks_of_parti_prompts_are_kept(tmp_path, wording):
    found = listed(tmp_path, "p.tsv", f"Prompt\tCategory\n{wording}\tx\na cat\ty\n")
    assert [prompt.text for prompt in found] == [wording, "a cat"]


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
        ("prompt,seed\na cat,-1\n", "'-1', but a whole number"),
        ("prompt,seed\na cat,red\n", "red"),
    ],
)
def test_invalid_tables_are_reported(tmp_path, text, words):
    with raises_key("prompts.bad_format", path="p.csv", reason=words) as caught:
        listed(tmp_path, "p.csv", text)
    assert "\n" not in str(caught.value)


# ---- other files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p.txt", "p.csv", "p.tsv", "p.json", "p.jsonl", "p.md"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "latin-1"])
def test_other_encodings_are_rejected(tmp_path, name, encoding):
    """UTF-16 without a byte order mark can be valid UTF-8 with null characters."""
    text = "a caf\xe9" if encoding == "latin-1" else "a cat"
    with raises_key("prompts.not_text", path=name, kind="kind.other_encoding"):
        listed(tmp_path, name, f"prompt\n{text}\n", encoding)


@pytest.mark.parametrize(
    "name, kind",
    [
        ("p.docx", "kind.docx"),
        ("p.DOCX", "kind.docx"),
        ("p.xlsx", "kind.xlsx"),
        ("p.odt", "kind.odt"),
        ("p.zip", "kind.zip"),
        ("p.txt", "kind.zip"),
    ],
)
def test_archives_are_rejected(tmp_path, name, kind):
    with zipfile.ZipFile(tmp_path / name, "w") as file:
        file.writestr("word/document.xml", "a cat")
    with raises_key("prompts.not_text", path=name, kind=kind):
        read_all(tmp_path / name)


def test_other_files_are_rejected(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"%PDF-1.7\n\xb5\xb6\n")
    (tmp_path / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "nul.txt").write_bytes(b"a cat\0")
    for name in ("p.txt", "p.png", "nul.txt"):
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


def test_invalid_parquet_tables_are_reported(write_parquet, tmp_path, monkeypatch):
    for columns in ({"text": ["a cat"]}, {"prompt": [1]}, {"prompt": [""]}, {"prompt": ["a"], "seed": [-1]}):
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


@pytest.mark.parametrize("seed", ["1.23457E+18", "1.23457e18", 1.23457e18, float(2**60)])
def test_a_seed_without_its_last_digits_is_refused(tmp_path, seed):
    """Spreadsheets and floating-point columns round large numbers; the image would have another seed than was meant."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "a cat", "seed": seed}), encoding="utf-8")
    with raises_key("prompts.bad_format", reason="has lost its last digits; store the column as text"):
        read_all(tmp_path / "a.jsonl")


@pytest.mark.parametrize("seed, number", [("1.2E+5", 120000), ("1234567890123456789", 1234567890123456789), (7.0, 7)])
def test_exact_seeds_are_read(tmp_path, seed, number):
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "a cat", "seed": seed}), encoding="utf-8")
    assert read_all(tmp_path / "a.jsonl")[0].seed == number
