# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sizes, time spans, booleans and compressions: what is taken, with which number, and what is refused.

tests/adapters/test_model_units.py asks systemd which time spans are taken, and how they are printed.
"""

from __future__ import annotations

import pytest

from journalkeeper.config.spec import parse_bool
from journalkeeper.model.units import (
    Compression,
    format_size,
    format_span,
    parse_compression,
    parse_size,
    parse_span_us,
)

SECOND, MINUTE, HOUR, DAY = 10**6, 60 * 10**6, 3600 * 10**6, 24 * 3600 * 10**6


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("512B", 512),
        ("128M", 134217728),
        ("1.5G", 1610612736),
        ("10.M", 10485760),  # systemd takes a bare point
        ("1.1G", 1181116006),  # a double, cut
        ("1G512M", 1610612736),
        (" +1 K", 1024),
        ("1B 2", 3),
        ("15E", 15 << 60),
        ("18446744073709551615", 2**64 - 1),
    ],
)
def test_size_is_read_with_base_1024(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", " ", "K", "-1", "-1K", "1k", "1Ki", "1KB", "10%", "1M 1M", "1M 1G", "1 2", "1K ", "1.5.5M", "1,5M", "infinity",
     "16E", "15E 1024P", "18446744073709551616", "\u0661K", "9" * 1001]
)  # fmt: skip
def test_size_that_systemd_refuses_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="a size in bytes"):
        parse_size(text)


def test_span_that_systemd_refuses_is_refused_with_what_is_allowed() -> None:
    for text in ("5parsecs", "1" * 1001):
        with pytest.raises(ValueError, match="a time span"):
            parse_span_us(text)


YES = ("1", "yes", "y", "true", "t", "on", "YES", "On")
NO = ("0", "no", "n", "false", "f", "off", "OFF")


@pytest.mark.parametrize("text", [*YES, *NO])
def test_yes_and_no_in_every_spelling(text: str) -> None:
    assert parse_bool(text) is (text in YES)


@pytest.mark.parametrize("text", ["", "2", "yes ", "ja", "auto", "-1"])
def test_other_words_are_no_boolean(text: str) -> None:
    with pytest.raises(ValueError, match="boolean"):
        parse_bool(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (1023, "1023B"),
        (1024, "1.0K"),
        (1127, "1.1K"),
        ((1 << 20) - 1, "1023.9K"),
        ((1 << 20) + 102 * 1024 + 1000, "1.0M"),  # cut to KiB first, as systemd does
        (2**64 - 1, "15.9E"),
    ],
)
def test_size_is_printed_as_systemd_prints_it(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("span_us", "accuracy_us", "text"),
    [
        (1_500_000, SECOND, "1s"),
        (90 * MINUTE + 5 * SECOND, MINUTE, "1h 30min"),
        (10 * MINUTE + 14 * SECOND + 999_999, 1, "10min 14s"),
        (HOUR + 5 * SECOND, 1, "1h 5s"),  # the third unit is the one that is cut
        (999_999, SECOND, "999ms"),
        (5 * SECOND, MINUTE, "5s"),  # something is better than nothing
        (400 * DAY, DAY, "1y 1month"),
    ],
)
def test_span_is_printed_in_at_most_two_units(span_us: int, accuracy_us: int, text: str) -> None:
    assert format_span(span_us, accuracy_us) == text


@pytest.mark.parametrize(
    ("text", "compression"),
    [
        ("no", None),
        ("lzo", Compression("lzo")),
        ("zlib:9", Compression("zlib", 9)),
        ("zstd", Compression("zstd")),
        ("zstd:1", Compression("zstd", 1)),
        ("zstd:15", Compression("zstd", 15)),
        ("zstd:03", Compression("zstd", 3)),
    ],
)
def test_compressions_that_btrfs_supports_are_accepted(text: str, compression: Compression | None) -> None:
    assert parse_compression(text) == compression
    assert str(compression or "no") == text.replace(":0", ":")


@pytest.mark.parametrize(
    "text",
    [
        *("", "yes", "none", "ZSTD", " zstd", "zstd ", "gzip", "gzip:1", ":3"),
        *("zstd:0", "zstd:16", "zstd:-1", "zstd:+3", "zstd:", "zstd:x", "zstd:3:3", "zstd:1.5", "zstd:\u0663"),
        *("zlib:0", "zlib:10", "lzo:1", "lzo:0", "no:1"),
    ],
)
def test_another_word_is_refused_with_the_allowed_ones(text: str) -> None:
    with pytest.raises(ValueError, match="is not a compression; allowed are no, lzo, zlib"):
        parse_compression(text)
