# SPDX-License-Identifier: LGPL-2.1-or-later
"""Prints the libraries of pyproject.toml that this Python lacks or has too old, one a line."""

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version

from pip._vendor.packaging.requirements import Requirement


def is_there(needed: Requirement) -> bool:
    """Whether the library is installed, and new enough."""
    try:
        return needed.specifier.contains(version(needed.name), prereleases=True)
    except PackageNotFoundError:
        return False


with open("pyproject.toml", "rb") as file:
    dependencies = map(Requirement, tomllib.load(file)["project"]["dependencies"])
sys.stdout.writelines(
    f"{needed.name}\n"
    for needed in dependencies
    if (needed.marker is None or needed.marker.evaluate()) and not is_there(needed)
)
