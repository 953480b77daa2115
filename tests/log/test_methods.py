"""The names of methods in tables, with their settings."""

from __future__ import annotations

from typing import Any

import pytest

from specbench.log.methods import MethodHeader, MethodLabel, SettingsHeader


def method(options: dict[str, Any], paper: dict[str, Any], source: str = "auto") -> MethodHeader:
    settings = SettingsHeader(source, paper)
    return MethodHeader("eagle2", "EAGLE-2", options, True, None, settings=settings)


@pytest.mark.parametrize(
    ("options", "paper", "text"),
    [
        ({"ngram": 2}, {}, ""),
        ({"ngram": 2}, {"removed": 3}, ""),  # an option of another version
        ({"ngram": 2}, {"ngram": 3}, "ngram=2; paper: 3"),
        ({"num_tokens": 1}, {"num_tokens": 10}, "1 token; paper: 10"),
        ({"nodes": 6}, {"nodes": 0}, "6 nodes; paper: all"),
        ({"total_tokens": 2, "depth": 1}, {"total_tokens": 60, "depth": 5},
         "2 nodes; paper: 60 nodes, 6 levels"),
        ({"total_tokens": 8, "depth": 5}, {"total_tokens": 60},
         "8 nodes; paper: 60 nodes, 6 levels"),
        ({"ngram": 2, "num_tokens": 4}, {"ngram": 3, "num_tokens": 10}, "4 tokens; paper: 10"),
        ({"tree": "/home/me/trees/small.json"}, {"tree": "big"}, "tree=small.json; paper: big"),
    ],
)  # fmt: skip
def test_the_size_of_a_draft_is_shown_beside_the_papers(
    options: dict[str, Any], paper: dict[str, Any], text: str
) -> None:
    assert method(options, paper).settings_text == text


def test_a_label_says_if_the_draft_was_cut() -> None:
    cut = method({"num_tokens": 6}, {"num_tokens": 10}, "cut")
    assert cut.settings_text == "6 tokens, cut; paper: 10"
    assert MethodHeader("pld", "PLD", {"num_tokens": 10}, True, None).settings_text == ""


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (MethodLabel("pld", "PLD"), "PLD"),
        (
            MethodLabel("pld:ngram=2,num_tokens=4", "PLD", others=("pld:ngram=2",)),
            "PLD (num_tokens=4)",
        ),
        (MethodLabel("typical", "Typical", is_lossless=False, threads=1), "Typical (1 thread)*"),
        (
            MethodLabel("pld", "PLD", threads=4, settings="6 tokens; paper: 10"),
            "PLD (6 tokens; paper: 10, 4 threads)",
        ),
        (MethodLabel("eagle:weights=org/head", "EAGLE"), "EAGLE (weights=org/head)"),
        (MethodLabel("eagle:weights=/a/b/c", "EAGLE"), "EAGLE (weights=c)"),
        (
            MethodLabel("eagle:weights=/a/b/c", "EAGLE", others=("eagle:weights=/x/b/c",)),
            "EAGLE (weights=a/b/c)",
        ),
    ],
)
def test_a_label_distinguishes_methods(label: MethodLabel, text: str) -> None:
    assert label.label == text
