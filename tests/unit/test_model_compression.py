# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words of Compress= and --compress=."""

from __future__ import annotations

import pytest

from journalkeeper.model.compression import Compression, parse_compression


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
