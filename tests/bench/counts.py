# SPDX-License-Identifier: LGPL-2.1-or-later
"""The extent counts of `journalkeeper scan` against those of filefrag(8), over files of every form (tests/forms.py).

sudo python -m tests.bench.counts --files 500
"""

from __future__ import annotations

import json
import os
import sys

from tests.bench.figures import at_least, at_most, engine, need_a_bed, parser, run, show
from tests.forms import FORMS, every_form
from tests.volumes import filefrag


def main() -> int:
    """Count and print."""
    words = parser(__doc__)
    words.add_argument("--files", type=int, default=500, help="(default: %(default)s)")
    asked = words.parse_args()
    need_a_bed(words)
    with every_form(-(-asked.files // (len(FORMS) + 3))) as (place, forms):
        paths = sorted(forms)
        rows = json.loads(run(*engine("scan", "-j", "-D", os.fspath(place.volume.mountpoint))))
        rows += json.loads(run(*engine("scan", "-j", "-D", os.fspath(place.volume.mountpoint / "stock"))))
        ours = {row["path"]: row["extents"] for row in rows}
        theirs = dict(zip(paths, filefrag(*paths, sync=True), strict=True))
    apart = {path: abs(ours[str(path)] - count) / count for path, count in theirs.items()}
    notes = [
        f"{form}: {len(those)} files of up to {max(map(theirs.__getitem__, those)):,} extents, "
        f"at most {max(map(apart.__getitem__, those)):.2%} apart"
        for form in dict.fromkeys(forms.values())
        if (those := [path for path in paths if forms[path] == form])
    ]
    worst = 100 * max(apart.values())
    figures = [at_least("files", len(paths), asked.files), at_most("counts apart from filefrag's, worst, %", worst, 1)]
    show("Extents of files of every form", notes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
