# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=sh
# What tests/run, tests/try and tests/fresh-root share; sourced, from the checkout's top.
. configs/setup.sh

# own_mounts: the words that run a command in a mount namespace of its own, so that nothing
# stays mounted however it ends; none where that cannot be (journalkeeper/probe/scratch_volume.py has why).
own_mounts() {
    if cut -d' ' -f5 /proc/self/mountinfo | grep -qx /; then
        set -- unshare --mount --propagation private
    else
        set -- unshare --mount --propagation unchanged
        if grep -q ' shared:' /proc/self/mountinfo; then return; fi
    fi
    if is_root && "$@" true 2>/dev/null; then echo "$@"; fi
}

# need_all: install what any test needs.
need_all() {
    need python bed guest build docs packaging trace remote
    wish
}

# require_mounts COMMAND REMEDY: end at once, before anything is built, where no btrfs can be mounted.
require_mounts() {
    is_root || die "$1 sets up a loop device and mounts a btrfs, which only root may: sudo $1"
    unshare --mount --propagation unchanged true 2>/dev/null || die "$1: root may not mount here (a container without CAP_SYS_ADMIN). $2"
    losetup --find >/dev/null 2>&1 || die "$1: no loop devices here (a container without /dev/loop-control). $2"
}

# borrow DIRECTORY PROGRAM PACKAGE...: PROGRAM below DIRECTORY/usr/bin, out of the first PACKAGE of
# the distribution that has it, which is unpacked and not installed: prometheus would be
# a service on this machine from then on. Only apt can; elsewhere, and without a network,
# the tests that need the program say so.
borrow() {
    shelf=$1
    program=$2
    shift 2
    [ "$(package_manager)" = apt-get ] || return 0
    [ ! -x "$shelf/usr/bin/$program" ] || return 0
    mkdir -p "$shelf"
    has_lists || refresh
    for name in "$@"; do
        case "$(candidate "$name")" in "" | "(none)") continue ;; esac
        say "fetching $name for its $program, to be unpacked and not installed"
        (cd "$shelf" && { apt-get download -qq "$name" || { refresh && apt-get download -qq "$name"; }; } >&2 &&
            dpkg-deb --extract "$name"_*.deb "$shelf" && rm -f "$name"_*.deb) && return
    done
    [ -x "$shelf/usr/bin/$program" ] || say "cannot fetch $program: the tests that need it will be skipped"
}
