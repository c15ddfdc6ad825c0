# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=sh
# What tests/run, tests/try and tests/fresh-root share; sourced, from the checkout's top.
. configs/setup.sh

# own_mounts: the words that run a command in a mount namespace of its own, so that nothing
# stays mounted however it ends; none where that cannot be (journalkeeper/lab/volume.py has why).
own_mounts() {
    if cut -d' ' -f5 /proc/self/mountinfo | grep -qx /; then
        set -- unshare --mount --propagation private
    else
        set -- unshare --mount --propagation unchanged
        if grep -q ' shared:' /proc/self/mountinfo; then return; fi
    fi
    if is_root && "$@" true 2>/dev/null; then echo "$@"; fi
}
