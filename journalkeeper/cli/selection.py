# SPDX-License-Identifier: LGPL-2.1-or-later
"""The options that choose files and methods, and the Request that they make.

`plan` and `defrag` take the same options, so that `plan` shows what `defrag` does.
"""

from __future__ import annotations

import argparse
import os

from journalkeeper.model import Request
from journalkeeper.model.compression import parse_compression
from journalkeeper.model.errors import UsageError


def names_another(args: argparse.Namespace) -> bool:
    """Return whether -D or --config name another journal or configuration than the host's."""
    return args.directory is not None or args.config is not None


def refuse_another(args: argparse.Namespace, command: str, why: str) -> None:
    """Refuse -D and --config for `command`. Raises: UsageError."""
    if names_another(args):
        raise UsageError(f"{command} {why}: it takes neither -D nor --config")


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add PATH…: the files to work on."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only these files (default: every journal file)")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the options with which `plan` and `defrag` choose files and methods."""
    add_paths(parser)
    parser.add_argument("--active", action="store_true", help="only files that journald writes to")
    parser.add_argument("--archived", action="store_true", help="only archived files")
    parser.add_argument("--now", action="store_true", help="wait for no flush window, settling or daily budget")
    parser.add_argument(
        "--compress",
        metavar="HOW",
        type=_compression,
        help="zstd[:LEVEL], zlib[:LEVEL], lzo or no, in place of Compress= in the configuration",
    )
    parser.add_argument(
        "--allow-unshare",
        action="store_true",
        help="also files that a snapshot shares; what they share then takes its space twice",
    )
    # The unit of 0.1.0 passes it; upkeep is always done now.
    parser.add_argument("--upkeep", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--before-shutdown",
        action="store_true",
        help="--active --now, counting what a boot would find in the files after a shutdown",
    )


def request(args: argparse.Namespace) -> Request:
    """Return the Request that the options of `add_selection` make. Its paths are absolute, and links are kept."""
    ending = args.before_shutdown
    both = args.active == args.archived and not ending
    active = args.active or both or ending
    return Request(
        paths=absolute(args.paths),
        active=active,
        archived=args.archived or both,
        now=args.now or ending,
        compress=args.compress,
        allow_unshare=args.allow_unshare or None,
        upkeep=active and not args.paths,
        ending=ending,
    )


def absolute(paths: list[str]) -> tuple[str, ...]:
    """Return absolute paths. A link stays a link, because the execution refuses it by its name."""
    return tuple(os.path.abspath(path) for path in paths)


def _compression(text: str) -> str:

    try:
        parse_compression(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
