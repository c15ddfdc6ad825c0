# SPDX-License-Identifier: LGPL-2.1-or-later
"""Print the libraries of pyproject.toml that this Python lacks or has in an old version, one on each line."""

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version

from pip._vendor.packaging.requirements import Requirement


def is_there(needed: Requirement) -> bool:
    """Return whether the library is installed in a version that pyproject.toml allows."""
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
