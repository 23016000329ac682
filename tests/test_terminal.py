"""Text of files on a terminal: control characters are escaped there, and nowhere else."""

import importlib
import json
import sys
import types

import pytest

from tfm import terminal

TITLE = "\x1b]0;owned\x07\x9b2J\u202ea\ud800"  # sets a title, clears the screen, reverses text


class Writer:
    """Stands for a model that writes what its stranger wants."""

    continues = False

    def __init__(self, *_):
        self.reader = self

    def write(self, *_):
        return [{"text": "x", "sequences": [{"text": TITLE, "score": 0.5}]}]

    def stream(self, *_):
        yield from ("x", TITLE)


CASES = {
    "classify": ("classify", lambda *_: [{"text": TITLE, "class": TITLE, "classes": {TITLE: 0.5}}]),
    "tag": ("tag", lambda *_: [[{"word": "x", "tag": TITLE, "probability": 0.5}]]),
    "generate": ("TextWriter", Writer),
    "translate": ("TextWriter", Writer),
    "fill": ("fill", lambda *_: [[{"token": TITLE, "probability": 0.5}]]),
    "neighbors": ("neighbors", lambda *_: [{"word": TITLE, "cosine": 0.5}]),
}


READER = types.SimpleNamespace(unknown=lambda text: [TITLE])


def strings(tree):
    """All texts in a tree."""
    if isinstance(tree, dict):
        tree = [*tree.keys(), *tree.values()]
    return [x for part in tree for x in strings(part)] if isinstance(tree, list) else [tree]


@pytest.mark.parametrize("json_", [False, True])
@pytest.mark.parametrize("verb", CASES)
def test_no_verb_lets_a_run_control_the_terminal(verb, json_, monkeypatch, capsys):
    module = importlib.import_module(f"tfm.cli.{verb}")
    name, fake = CASES[verb]
    monkeypatch.setattr(module, "load_run", lambda _: types.SimpleNamespace(reader=READER))
    monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # without the bold headings of tables
    module.main(["run", "x", *(["--json"] if json_ else [])])
    out, errors = capsys.readouterr()
    assert "owned" in out
    assert all(c.isprintable() or c in "\n\t" for c in out + errors)
    assert not json_ or TITLE in strings(json.loads(out))


def test_other_programs_get_the_text_as_it_is(capsys):
    terminal.show("a\x1b[1m\tb\u3000c")
    assert capsys.readouterr().out == "a\x1b[1m\tb\u3000c\n"
