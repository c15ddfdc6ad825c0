# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes the installed files that are derived from the code: configs/man/make OUTDIR

It writes the man pages to man1/, man5/, man7/ and man8/, the completions to bash/journalkeeper,
zsh/_journalkeeper and fish/journalkeeper.fish, the XML of the D-Bus interfaces to interfaces/,
the JSON Schemas to schema/ and the changelog to doc/NEWS below OUTDIR; `man -M OUTDIR journalkeeper`
shows the result. It needs Python, pydantic, jinja2 and this checkout. The pages' date is $SOURCE_DATE_EPOCH, or today.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # the checkout stays clean
HERE = Path(__file__).resolve().parent
sys.path[:0] = [os.fspath(HERE), os.fspath(HERE.parent.parent)]

import completions  # noqa: E402 - found by the line above
import grammar  # noqa: E402
import interfaces  # noqa: E402
import pages  # noqa: E402
import schemas  # noqa: E402


def main(words: list[str]) -> int:
    """Write all files below the directory that is the only one of `words`; return 2 if there is no such word."""
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(__doc__ or "")
        return 0 if words == ["--help"] else 2
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    day = time.strftime("%Y-%m-%d", time.gmtime(seconds))
    made = {f"man{name.rpartition('.')[2]}/{name}": text for name, text in pages.pages(day)}
    top = grammar.program()
    for shell, name in (("bash", "journalkeeper"), ("zsh", "_journalkeeper"), ("fish", "journalkeeper.fish")):
        made[f"{shell}/{name}"] = completions.complete(shell, top)
    made |= {f"interfaces/{name}.xml": interfaces.make_xml(one) for name, one in interfaces.INTERFACES.items()}
    made |= {
        f"schema/{name}.json": f"{json.dumps(schemas.make_answer_schema(name), indent=2)}\n" for name in schemas.ANSWERS
    }
    made["doc/NEWS"] = pages.CHANGELOG.read_text()
    for name, text in made.items():
        path = Path(words[0], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
