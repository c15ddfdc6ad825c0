# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=sh
# Functions that install packages and make a virtual environment, for configs/install and the scripts in tests/.
# A script sources this file in the top directory of the checkout.
# Libraries come from the distribution where it has them, and otherwise from PyPI into a virtual environment. Nothing is
# written into the checkout.

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

package_manager() {
    for manager in apt-get dnf zypper pacman; do
        if command -v "$manager" >/dev/null 2>&1; then
            echo "$manager"
            return
        fi
    done
    echo none
}

# packages KIND: print names of the distribution's packages, one on each line. The kinds are:
#   python     the interpreter, and the libraries that pip would have to compile
#   nice       libraries that pip can fetch, too, if the distribution's are missing or too old (NAME>=VERSION)
#   bed        programs that make a btrfs and a journald for tests
#   guest      programs that make and boot a Debian, on Debian or Ubuntu only
#   packaging  programs that build and check packages, on Debian or Ubuntu only
#   build      the compiler and headers that `pip install .` needs
#   docs       programs that check man pages and completions
#   trace      strace
#   browser    a browser without a screen, and a font, for the page of `report`
#   remote     systemd-journal-remote, which writes journals of other hosts (its units stay disabled)
packages() {
    case "$(package_manager) $1" in
    "apt-get python") echo "python3 python3-venv python3-systemd python3-btrfsutil python3-psutil" ;;
    "apt-get nice") echo "python3-jeepney>=0.8 python3-jinja2 python3-pyinotify python3-pyasyncore python3-pydantic>=2.10" ;;
    "apt-get bed") echo "btrfs-progs btrfs-compsize systemd mount util-linux e2fsprogs acl attr dbus polkitd libglib2.0-bin" ;;
    "apt-get guest") echo "kmod systemd-container mmdebstrap debian-archive-keyring zstd" ;;
    "apt-get build") echo "python3-dev libbtrfsutil-dev libsystemd-dev gcc pkg-config" ;;
    "apt-get packaging") echo "dpkg-dev debhelper dh-python lintian rpm rpmlint makepkg libarchive-tools pacman-package-manager" ;;
    "apt-get docs") echo "mandoc man-db groff bash zsh fish jq" ;;
    "dnf python") echo "python3 python3-pip python3-systemd python3-btrfsutil python3-psutil" ;;
    "dnf nice") echo "python3-jeepney>=0.8 python3-jinja2 python3-inotify python3-pyasyncore python3-pydantic>=2.10" ;;
    "dnf bed") echo "btrfs-progs compsize systemd util-linux e2fsprogs acl attr dbus-daemon polkit glib2" ;;
    "dnf build") echo "python3-devel btrfs-progs-devel systemd-devel gcc pkgconf-pkg-config" ;;
    "dnf docs") echo "mandoc man-db groff bash zsh fish jq" ;;
    "zypper python") echo "python3 python3-pip python3-systemd python-btrfsutil python3-psutil" ;;
    "zypper nice") echo "python3-jeepney>=0.8 python3-Jinja2 python3-pyinotify python3-pyasyncore python3-pydantic>=2.10" ;;
    "zypper bed") echo "btrfsprogs compsize systemd util-linux e2fsprogs acl attr dbus-1-daemon polkit glib2-tools" ;;
    "zypper build") echo "python3-devel libbtrfsutil-devel systemd-devel gcc pkg-config" ;;
    "zypper docs") echo "mandoc man groff bash zsh fish jq" ;;
    "pacman python") echo "python python-pip python-systemd btrfs-progs python-psutil" ;;
    "pacman nice") echo "python-jeepney>=0.8 python-jinja python-pyinotify python-pyasyncore python-pydantic>=2.10" ;;
    "pacman bed") echo "btrfs-progs compsize systemd util-linux e2fsprogs acl attr dbus polkit glib2" ;;
    "pacman build") echo "gcc pkgconf" ;;
    "pacman docs") echo "mandoc man-db groff bash zsh fish jq" ;;
    "apt-get remote" | "dnf remote" | "zypper remote") echo "systemd-journal-remote" ;; # pacman has it in systemd
    *" trace") echo "strace" ;;
    "apt-get browser") echo "chromium fonts-dejavu-core" ;;
    "dnf browser") echo "chromium-headless dejavu-sans-fonts" ;;
    "zypper browser") echo "chromium dejavu-fonts" ;;
    "pacman browser") echo "chromium ttf-dejavu" ;;
    esac | tr ' ' '\n'
}

installed() {
    case "$(package_manager)" in
    apt-get) dpkg-query -W -f '${Status}' "${1%%>=*}" 2>/dev/null | grep -q ' installed$' ;;
    dnf | zypper) rpm -q --quiet --whatprovides "${1%%>=*}" ;;
    pacman) pacman -T "$1" >/dev/null ;;
    esac
}

lacking() {
    for kind in "$@"; do
        packages "$kind" | while read -r name; do
            installed "$name" || echo "$name"
        done
    done
}

add_packages() {
    case "$(package_manager)" in
    apt-get)
        # dpkg must not ask: a configuration file that the admin has changed stays as it is
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
            -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@" >&2
        ;;
    dnf) dnf install -q -y --setopt=install_weak_deps=False "$@" >&2 ;;
    zypper) zypper --quiet --non-interactive install --no-recommends "$@" >&2 ;;
    pacman) pacman -S --needed --noconfirm "$@" >&2 ;;
    esac
}

refresh() {
    case "$(package_manager)" in
    apt-get) apt-get update -qq >&2 ;;
    pacman) pacman -Sy >&2 ;;
    esac
}

# need KIND...: install the missing packages of these kinds. As a user, print their names.
need() {
    # names have no blanks
    # shellcheck disable=SC2046
    set -- $(lacking "$@")
    [ $# -gt 0 ] || return 0
    if [ "$(package_manager)" = none ]; then
        say "no apt-get, dnf, zypper or pacman here: going on without looking for packages"
    elif ! is_root; then
        say "not installed, and only root can: $*"
    else
        say "installing with $(package_manager): $*"
        refresh || die "$(package_manager) cannot refresh its lists; see its words above"
        add_packages "$@" || die "$(package_manager) cannot install what is needed: $*"
    fi
}

# offered NAME[>=VERSION]: succeed if apt has the package in this version. Other package managers refuse old ones.
offered() {
    case "$(package_manager) $1" in
    "apt-get "*">="*) dpkg --compare-versions "$(candidate "${1%%>=*}")" ge "${1##*>=}" ;;
    esac
}

# spelled NAME[>=VERSION]: print the package as an argument of this package manager
spelled() {
    case "$(package_manager) $1" in
    "apt-get "*) echo "${1%%>=*}" ;;
    "dnf "*">="* | "zypper "*">="*) echo "${1%%>=*} >= ${1##*>=}" ;;
    *) echo "$1" ;;
    esac
}

candidate() { LC_ALL=C apt-cache policy "$1" | sed -n 's/^  Candidate: //p'; }

# has_lists: succeed if apt has lists of packages
has_lists() {
    for list in /var/lib/apt/lists/*_Packages*; do
        if [ -e "$list" ]; then return; fi
    done
    return 1
}

# wish: install the libraries of the kind "nice" that the distribution has.
wish() {
    is_root || return 0
    wanted=$(lacking nice)
    [ -n "$wanted" ] || return 0
    [ "$(package_manager)" != apt-get ] || has_lists || refresh
    echo "$wanted" | while read -r name; do
        if offered "$name"; then
            add_packages "$(spelled "$name")" >/dev/null 2>&1 || : # pip fetches it
        fi
    done
}

# Debian's own interpreter first: its python3-* packages are for that one.
find_python() {
    for candidate in /usr/bin/python3 python3; do
        if "$candidate" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "no Python 3.11 or later here"
}

# $follow, if set, is a function that runs the commands of pip.
# make_venv DIR: a virtual environment over the distribution's libraries.
make_venv() { ${follow-} "$(find_python)" -I -m venv --system-site-packages "$1"; }

# pip_in DIR WORDS...: pip in a virtual environment.
pip_in() {
    venv=$1
    shift
    ${follow-} "$venv/bin/python" -I -m pip --quiet --disable-pip-version-check "$@"
}

# pinned DIR NAME WORDS...: install the files of configs/pins/NAME.txt by their hashes, built by pinned tools.
pinned() {
    venv=$1
    list=configs/pins/$2.txt
    shift 2
    [ -e "$list" ] || die "$(basename "$list" .txt): neither a package of the distribution nor in configs/pins; install it first"
    pip_in "$venv" install --require-hashes --no-build-isolation --use-pep517 "$@" --requirement "$list"
}

# make_program DIR: make a virtual environment with journalkeeper, and with the libraries that the distribution lacks or
# has in an old version. The build tools are removed.
make_program() {
    made=$1
    make_venv "$made" && pinned "$made" build --target "$made/build" || return
    export PYTHONPATH="$made/build"
    for library in $("$made/bin/python" -I configs/pins/lacking.py); do
        say "$library from PyPI"
        pinned "$made" "$library" || return
    done
    pip_in "$made" install --no-deps --no-index --no-build-isolation . || return
    # in place of pip's own script, which passes on every variable
    sed "s,/usr/bin/python3 -IB /usr/share/journalkeeper,'$made/bin/python' -I -m journalkeeper," \
        configs/bin/journalkeeper >"$made/bin/journalkeeper" || return
    unset PYTHONPATH
    rm -rf "${made:?}/build"
}
