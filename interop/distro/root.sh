#!/usr/bin/env bash
# Makes a Debian system in a folder, with the programs that `interop distro` runs. Prints the folder. Idempotent.
#   root.sh SUITE            bookworm, trixie, sid …
#   root.sh --remove SUITE   removes it, and everything built in it
#   root.sh --check          prints what the host lacks for it
# $ROXIE_DEBIAN_MIRROR names another mirror than the host's, $ROXIE_CACHE another folder than .cache, $ROXIE_PACKAGES other programs.
#
#   $cache/root/        the system
#   $cache/target/      cargo's output
#   $cache/complete     the packages that are installed
# Exit codes: 3 the host lacks something, 4 the mirror cannot supply it, 2 any other failure.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# Default: the host's mirror.
mirror=${ROXIE_DEBIAN_MIRROR:-$(timeout 60 apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 2>/dev/null | sed -n 's|/debian/*$||p' | head -n 1 || true)}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The programs that run, and tools to observe them.
packages=(perftest ibverbs-utils ibverbs-providers rdmacm-utils qperf fio ucx-utils libfabric-bin python3-pyverbs iproute2 procps
    bsdutils make
    ca-certificates)
[ -z "${ROXIE_PACKAGES:-}" ] || read -ra packages <<<"$ROXIE_PACKAGES"

say() { echo "distro: $*" >&2; }

lacks() {
    local missing=() pair
    [ -n "$mirror" ] || { say "apt has no Debian mirror here: set ROXIE_DEBIAN_MIRROR to one (http://HOST)"; return 1; }
    [ "$(id -u)" -eq 0 ] || { say "not root: a system in a folder takes it (sudo -E …)"; return 1; }
    for pair in debootstrap:debootstrap unshare:util-linux pivot_root:util-linux apt-config:apt tar:tar; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    [ -e "$keyring" ] || missing+=(debian-archive-keyring)
    [ ${#missing[@]} -eq 0 ] && return 0
    say "missing: apt-get install -y --no-install-recommends $(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')"
    return 1
}

# Reports that `$1` is not available; `$2` is the log.
not_had() {
    say "$1 cannot be had from $mirror: $(grep -E '^(E|Err|W):' "$2" | tail -n 2 | tr '\n' ' ')"
    say "check the network (or set ROXIE_DEBIAN_MIRROR to a mirror's http://HOST) and run again; the whole log is $2"
    exit 4
}

# Prints the host's apt settings of access to mirrors and of date checks, for the system in the folder.
host_apt_settings() {
    apt-config dump | grep -E '^Acquire::(http|https|Retries|ForceIPv|Check-Date|Check-Valid-Until|Max-FutureTime)' |
        grep -v ' "";$' || true
}

case ${1:-} in
--check)
    lacks || exit 3
    exit 0
    ;;
--remove)
    suite=${2:?which suite? For example trixie}
    remove=yes
    ;;
'' | -*) sed -n 's/^# \{0,1\}//p;/^set/q' "$0" >&2 && exit 2 ;;
*)
    suite=$1
    remove=
    ;;
esac
[[ $suite =~ ^[a-z]+$ ]] || { say "$suite is no suite of Debian: bookworm, trixie, sid …"; exit 2; }
cache=${ROXIE_CACHE:-$(dirname "$(dirname "$here")")/.cache}/distros/$suite

if [ -n "$remove" ]; then
    # Mounts there exist only in the mount namespaces of running commands.
    rm -rf --one-file-system "$cache"
    exit 0
fi
if [ "$(cat "$cache/complete" 2>/dev/null)" = "${packages[*]}" ]; then
    echo "$cache"
    exit 0
fi
lacks || exit 3

mkdir -p "$cache/target"
if [ ! -e "$cache/root/etc/debian_version" ]; then
    say "$suite: the system itself, by debootstrap"
    rm -rf --one-file-system "$cache/root.new"
    PATH=$PATH:/usr/sbin:/sbin timeout --foreground --kill-after=10 3600 debootstrap --variant=minbase --keyring="$keyring" "$suite" "$cache/root.new" "$mirror/debian" \
        >"$cache/log" 2>&1 || not_had "the system" "$cache/log"
    mkdir -p "$cache/root.new/roxie" "$cache/root.new/srv"
    mv "$cache/root.new" "$cache/root"
fi
host_apt_settings >"$cache/root/etc/apt/apt.conf.d/99host"
{
    echo "deb $mirror/debian $suite main"
    echo "deb-src $mirror/debian $suite main"
    case $suite in
    sid | unstable) ;;
    *)
        # These have newer compilers (rustc-web, for browsers).
        echo "deb $mirror/debian $suite-updates main"
        echo "deb $mirror/debian-security $suite-security main"
        ;;
    esac
} >"$cache/root/etc/apt/sources.list"
say "$suite: ${packages[*]}"
"$here/enter.sh" "$cache" sh -c '
    export DEBIAN_FRONTEND=noninteractive
    timeout --foreground --kill-after=10 600 apt-get update -q && timeout --foreground --kill-after=10 3600 apt-get install -y -q --no-install-recommends "$@"' sh "${packages[@]}" \
    >"$cache/log" 2>&1 || not_had "a package" "$cache/log"
# The tests of python3-pyverbs are only in the source package; upstream's archive of it suffices if a mirror lacks the rest.
if [[ " ${packages[*]} " == *" python3-pyverbs "* ]] && ! compgen -G "$cache/root/srv/rdma-core/tests/run_tests.py" >/dev/null; then
    say "$suite: the tests of its rdma-core"
    "$here/enter.sh" "$cache" sh -c '
        mkdir -p /srv/rdma-core && cd /srv && { timeout --foreground --kill-after=10 600 apt-get source -q --download-only rdma-core || true; } &&
            tar -xf rdma-core_*.orig.tar.* -C rdma-core --strip-components=1 --wildcards --no-wildcards-match-slash "*/tests/*"' \
        >"$cache/log" 2>&1 || say "$suite: the source of rdma-core cannot be had: its Python tests will be skipped"
fi
echo "${packages[*]}" >"$cache/complete"
echo "$cache"
