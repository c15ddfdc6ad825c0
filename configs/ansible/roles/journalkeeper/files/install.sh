#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Installs from an archive of the source: install.sh ARCHIVE
# The archive stays on the host: the next play compares it, and uninstall.sh runs its uninstaller.
set -eu
archive=$1
work=$(mktemp -d /var/tmp/journalkeeper-XXXXXX)
trap 'rm -rf "$work" "$archive"' EXIT
tar -xzf "$archive" -C "$work"
"$work/configs/install" --no-start
install -m 644 "$archive" /usr/lib/journalkeeper/source.tar.gz
