"""Numbers as a user reads them."""

from __future__ import annotations

import pytest

from jupyter_sky.formatting import (
    aligned,
    as_sentence,
    escaped,
    format_bytes,
    format_cost,
    format_count,
    format_dollars,
    format_duration,
    format_list,
    format_ranks,
    format_share,
    join_reasons,
    without_secrets,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (12_400, "12.4 kB"),
        (8_410_000, "8.41 MB"),
        (256_000_000, "256 MB"),
        (4_000_000_000, "4 GB"),
        (1_250_000_000, "1.25 GB"),
        (3.2e12, "3.2 TB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert format_bytes(count) == text


def test_shares() -> None:
    assert format_share(12.1e9, 40e9) == "12.1 / 40 GB"
    assert format_share(80e6, 16e9) == "0.08 / 16 GB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-7200.0, "0 s"),
        (0.4, "0 s"),
        (59.9, "59 s"),
        (3599, "59 min"),
        (7500, "2 h 05 min"),
        (4e5, "4 d 15 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_dollars_of_any_size_are_never_shown_as_nothing() -> None:
    texts = {
        0: "$0.00",
        1e-6: "< $0.0001",
        0.005: "$0.005",
        0.0123: "$0.0123",
        0.02: "$0.02",
        0.5: "$0.50",
        1234.5: "$1,234.50",
    }
    assert {each: format_dollars(each) for each in texts} == texts


def test_no_digit_is_written_that_says_nothing() -> None:
    assert format_dollars(0.09996) == "$0.10"


def test_costs_are_in_their_unit() -> None:
    assert format_cost(1.2, "dollars") == "$1.20"
    assert [format_cost(each, "GPU hours") for each in (0, 1e-6, 0.0123, 1, 1234.5)] == [
        "0.00 GPU hours",
        "< 0.01 GPU hours",
        "0.01 GPU hours",
        "1.00 GPU hours",
        "1,234.50 GPU hours",
    ]


def test_counts_ranks_and_lists() -> None:
    assert format_count(1, "node") == "1 node"
    assert format_count(4, "local node") == "4 local nodes"
    assert format_count(1024, "rank") == "1,024 ranks"
    assert format_ranks([3]) == "rank 3"
    assert format_ranks([5, 0, 1, 2]) == "ranks 0-2, 5"
    assert [format_list(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


def test_a_reason_is_said_once() -> None:
    said = ["a fails: it is late: run x.", "kept: b", "c (2: d) fails: it is late: run x.", "e"]
    joined = ["a fails; c (2: d) fails: it is late: run x.", "kept: b", "e"]
    assert join_reasons([*said, "e"]) == joined
    assert join_reasons([]) == []


def test_columns_are_aligned_without_spaces_at_the_end() -> None:
    assert list(aligned([["name", "state"], ["a", ""]])) == ["name  state", "a"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("torch>=2 numpy", "torch>=2 numpy"),
        ("https://me:s3cret@index.org/simple", "https://****@index.org/simple"),
        ("https://ghp_s3cret@index.org", "https://****@index.org"),
        ("--pip 'a @ git+https://s3cret@h.org/a.git@v1#egg=a'", None),
        (
            "https://h.org/simple?token=s3cret&user=s3cret",
            "https://h.org/simple?token=****&user=****",
        ),
        (
            "https://h.org/basic/Ab3dEf6hIj9lMn2p/team/simple/",
            "https://h.org/basic/****/team/simple/",
        ),
        ("https://h.org/ab/0123456789abcdef0123/torch-2.4.0-py3-none-any.whl#sha256=ab12", None),
        (
            "no ssh://git@github.com/a and (http://u:p@h)",
            "no ssh://****@github.com/a and (http://****@h)",
        ),
        ("to s3://bucket/run12345678901234", None),
    ],
)
def test_no_address_is_shown_with_its_secret(text: str, shown: str | None) -> None:
    expected = text.replace("s3cret@", "****@") if shown is None else shown
    assert without_secrets(text) == expected
    assert without_secrets(expected) == expected


def test_a_question_is_a_sentence_already() -> None:
    assert as_sentence("is it on, and are you in its network?") == (
        "is it on, and are you in its network?"
    )
    assert as_sentence("it is off") == as_sentence("it is off.") == "it is off."


def test_a_time_has_no_part_that_is_nothing() -> None:
    assert [format_duration(each) for each in (59, 3599, 7260, 93600, 604800)] == [
        "59 s",
        "59 min",
        "2 h 01 min",
        "1 d 2 h",
        "7 d",
    ]


def test_what_cannot_be_encoded_is_escaped_wherever_it_is() -> None:
    data = {"a\ud800": ["ü\udcff", {"b": ("\ud800", 1)}], "c": b"\xff", "d": None}
    shown = escaped(data)
    assert shown == {"a\\ud800": ["ü\\udcff", {"b": ["\\ud800", 1]}], "c": b"\xff", "d": None}
