"""Patterns as RE2 reads them: what it does not take is named, with what to write instead."""

import pytest

from ingestd.patterns import BytesPattern, WrongPattern, pattern_problem, text_matcher


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(a", "missing ): (a"),
        ("a(?=b)", "(?=: RE2 has no look-around; match what stands there too"),
        ("(?!a)b", "(?!: RE2 has no look-around"),
        ("(?<=a)b", "(?<=: RE2 has no look-around"),
        ("(?<!a)b", "(?<!: RE2 has no look-around"),
        (r"(a)\1", r"\1: RE2 has no back references; write the expression again"),
        ("(?P<k>a)(?P=k)", "(?P: RE2 has no back references"),
        ("(?>a)", "(?>: RE2 needs no atomic groups, since it never backtracks; write (?:...)"),
        ("a++", "++: RE2 needs no possessive repeats, since it never backtracks; leave out the last +"),
        ("a{2}+", "{2}+: RE2 needs no possessive repeats"),
        (r"a\Z", r"\Z: RE2 ends a text with \z; write that"),
        (r"\u20ac", r"\u: RE2 has no such escape; write the character itself"),
        ("(?#why)a", "(?#: RE2 has no comments; leave it out"),
        ("(?x)a", "(?x: RE2 has the flags i, m, s and U"),
        ("a{1001}", "{1001}: RE2 repeats up to 1000 times"),
        ("((a{100}){100}){100}", "invalid repetition size"),
        (r"\\{,5}", "{,N}: RE2 takes it for text; write {0,N}"),
        ("\udce9", "invalid UTF-8"),
    ],
)
def test_what_re2_does_not_take_is_named_with_what_to_write_instead(pattern: str, problem: str) -> None:
    found = pattern_problem(pattern)
    assert found is not None
    assert found.startswith(problem)


@pytest.mark.parametrize("pattern", ["", "a|b", "(?P<key>[^/]+)", "(?i)käse", r"\{,5}", r"a{0,1000}", r"^\w+\s*$", "{"])
def test_what_re2_takes_is_no_problem(pattern: str) -> None:
    assert pattern_problem(pattern) is None


def test_a_wrong_pattern_is_refused_where_it_is_used() -> None:
    with pytest.raises(WrongPattern, match="missing"):
        BytesPattern("(a")
    with pytest.raises(WrongPattern, match="look-around"):
        text_matcher(["a", "(?=b)"])


def test_a_search_tells_where_the_match_and_each_group_are() -> None:
    pattern = BytesPattern("b(?P<key>.)(x)?")
    assert (pattern.groups, pattern.names) == (2, {"key": 1})
    assert list(pattern.search(b"ab\xff", 0, 3)) == [(1, 3), (2, 3), (-1, -1)]
    assert list(pattern.search(b"a", 0, 1)) == [(-1, -1)] * 3


def test_a_text_matches_as_a_whole_in_any_alphabet() -> None:
    matches = text_matcher(["k.se", "a|b"])
    assert [matches(text) for text in ("käse", "k\ufffdse", "käsee", "b", "ab", "")] == [True] * 2 + [False] * 1 + [
        True
    ] + [False] * 2
