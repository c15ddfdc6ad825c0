# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=sh
# Each script in configs/ sources this file first. For root it starts the script again, with these variables alone. Others
# make a program of root's load or run a user's file, and `sudo -E` and `su -m` keep them. The kept ones tell how to reach
# an index, whose files are checked by their hashes, and who makes a package.
unset CDPATH
if [ "${1-}" = --clean ]; then
    shift
elif [ "$(LC_ALL=C /usr/bin/id -u)" -eq 0 ]; then
    export LC_ALL=C # the programs below load no user's locale
    home=$(/usr/bin/getent passwd 0 | /usr/bin/cut -d: -f6)
    set -- /bin/sh -p "$0" --clean "$@"
    for name in LANG TERM COLUMNS SOURCE_DATE_EPOCH DEBFULLNAME DEBEMAIL \
        http_proxy https_proxy no_proxy all_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY \
        SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE \
        PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_FIND_LINKS PIP_NO_INDEX PIP_PROXY PIP_CERT \
        PIP_CLIENT_CERT PIP_DEFAULT_TIMEOUT PIP_TIMEOUT PIP_RETRIES; do
        eval "[ -z \"\${$name+set}\" ] || set -- \"$name=\$$name\" \"\$@\""
    done
    exec /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "HOME=$home" "$@"
fi
