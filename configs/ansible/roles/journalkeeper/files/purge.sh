#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Removes the files that stay on a host when journalkeeper is removed: purge.sh [--list] [ROOT]
# They are the history, the configuration, drop-ins of the units, journald's limits of "journalkeeper retention", and the
# metrics file that a configuration names. Each path is printed. With --list nothing is removed. NOCOW directories stay
# NOCOW, and are printed. The script needs no file of journalkeeper's, so packages run it, too.
set -eu
verb=removed
if [ "${1:-}" = --list ]; then
    verb=kept
    shift
fi
root=${1:-}

# values KEY: print the values of all files of the configuration; an overridden one was in force earlier
values() {
    for place in etc run usr/local/lib usr/lib; do
        for file in "$root/$place/journalkeeper.conf" "$root/$place/journalkeeper.conf.d"/*.conf; do
            if [ -f "$file" ]; then sed -n "s/^[[:space:]]*$1[[:space:]]*=[[:space:]]*//p" "$file"; fi
        done
    done
}

metrics() {
    values Textfile | while read -r place; do
        case $place in
        /*.prom) ;;
        /*) place=${place%/}/journalkeeper.prom ;;
        *) continue ;;
        esac
        if [ -f "$root$place" ]; then echo "$place"; fi
    done | LC_ALL=C sort -u
}

own() {
    metrics
    printf '%s\n' /var/lib/journalkeeper /etc/journalkeeper.conf /etc/journalkeeper.conf.d \
        /etc/systemd/journald.conf.d/60-journalkeeper-retention.conf
    for unit in journalkeeper- journalkeeper journalkeeper-shutdown journalkeeper-defrag; do
        printf '/etc/systemd/system/%s.d\n' "$unit.service" "$unit.timer"
    done
}

# lsattr fails where a filesystem has no attributes
nocow() {
    { echo /var/log/journal && values Directories; } | xargs -n 1 | while read -r top; do
        for directory in "$root$top" "$root$top"/*/; do
            flags=$(lsattr -d "$directory" 2>/dev/null) || continue
            case ${flags%% *} in *C*) echo "${directory%/}" ;; esac
        done
    done | LC_ALL=C sort -u
}

nocow | while read -r directory; do
    echo "kept: +C of $directory: files made there have no checksums; chattr -C $directory takes it off new files"
done
if [ -e "$root/usr/lib/tmpfiles.d/journal-nocow.conf" ] && [ ! -e "$root/etc/tmpfiles.d/journal-nocow.conf" ]; then
    echo "kept: systemd's own journal-nocow.conf, which sets +C below /var/log/journal at each boot;" \
        "a link /etc/tmpfiles.d/journal-nocow.conf to /dev/null ends that"
fi
own | while read -r path; do
    [ -e "$root$path" ] || [ -L "$root$path" ] || continue
    echo "$verb: $root$path"
    [ "$verb" = kept ] || rm -rf "$root$path"
done
