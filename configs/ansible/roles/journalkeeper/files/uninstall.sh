#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Uninstalls what install.sh has installed, with its own uninstaller: uninstall.sh [--purge]
set -eu
archive=/usr/lib/journalkeeper/source.tar.gz
if [ ! -e "$archive" ]; then
    echo "$archive: not there; what configs/install installed by hand goes with configs/install --uninstall" >&2
    exit 1
fi
work=$(mktemp -d /var/tmp/journalkeeper-XXXXXX)
trap 'rm -rf "$work"' EXIT
tar -xzf "$archive" -C "$work"
"$work/configs/install" --uninstall "$@"
