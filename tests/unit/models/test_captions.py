"""Tests of caption cleaning as in DeepFloyd IF and PixArt."""

import sys
import warnings

import pytest

from adt_core.errors import pip_install
from adt_core.models.families.llamagen_captions import clean
from tests.raising import raises_key

CASES = {
    "A red fox": "a red fox",
    "a+red%20fox": "a red fox",
    "<person> on a horse": "person on a horse",
    "see https://www.example.com/a/b for more": "see for more",
    "by example.org, 2020": "by , 2020",
    "a <b>bold</b> fox &amp; friends": "a bold fox friends",
    "photo by @someone in snow": "photo by in snow",
    "狐狸 a fox 㐀": "a fox",
    "long \u2014 dash \u2013 here": "long - dash - here",
    "some \u00abquoted\u00bb text and \u2018more\u2019 of it": "some \"quoted\" text and 'more' of it",
    "host 192.168.0.1 down": "host down",
    "picture #12 and #1234567": "picture and",
    "order 12345678 of shoes": "order of shoes",
    "fox_01.jpg of a fox": "of a fox",
    '""sale"" now...here': '"sale" now here',
    "what (a) [nice] {day} | here*": "what a nice day here",
    "this-is-my-cute-cat-again": "this is my cute cat again",
    "a well-known black-and-white cat": "a well-known black-and-white cat",
    "shoe jc6640 and jc6640vc and 6640vc231": "shoe and and",
    "worldwide free shipping of rugs": "of rugs",
    "free download of a fox": "of a fox",
    "click for more foxes": "foxes",
    "a png image of page 12": "a of",
    "poster 20x30 of a fox": "poster of a fox",
    "one,two.three": "one, two. three",
    "title : fox": "title: fox",
    "'a fox in quotes'": "a fox in quotes",
    "-a fox-": "a fox",
    "a \ufb01sh": "a fish",
    "   ": "",
    "漢字": "",
}


@pytest.mark.parametrize("caption", CASES)
def test_cleaned_captions(caption):
    assert clean(caption) == CASES[caption]


@pytest.mark.parametrize("package", ["ftfy", "bs4"])
def test_missing_libraries_are_reported(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with raises_key("llamagen.no_library", library=package, command=pip_install("ftfy beautifulsoup4")):
        clean("a fox")


@pytest.mark.parametrize(
    "python, command",
    [
        ("/usr/bin/python3", "/usr/bin/python3 -m pip install ftfy"),
        ("/my pack (1)/python", '"/my pack (1)/python" -m pip install ftfy'),
        ("", "python -m pip install ftfy"),
    ],
)
def test_command_to_install_a_library(python, command, monkeypatch):
    monkeypatch.setattr(sys, "executable", python)
    assert pip_install("ftfy") == command


def test_captions_that_resemble_file_names():
    """Beautiful Soup prints a warning for texts that resemble file names."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clean("images/of/cats") == "images of cats" and clean("a_cat.jpg of a cat") == "of a cat"
