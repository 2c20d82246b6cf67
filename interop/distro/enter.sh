#!/usr/bin/env bash
# Runs a command in a Debian made by root.sh, in the caller's network namespace, with the sources of this workspace at
# /roxie (read-only except target/, which is that system's own).
#   enter.sh CACHE COMMAND…
# INSIDE names its working directory there, TARGET the folder of another system's target/.
# All mounts are in the command's own mount namespace and end with it. The folder becomes its root by pivot_root: after a plain
# chroot the root is not a mount, and a program that makes its mounts private would fail.
set -euo pipefail

cache=${1:?the folder that root.sh prints}
shift
source=$(cd "$(dirname "$0")/../.." && pwd)
[ -e "$cache/root/etc/debian_version" ] || { echo "enter: $cache/root is no system: root.sh makes one" >&2; exit 2; }
target=${TARGET:-$cache/target}
mkdir -p "$source/target" "$target"
export cache source target
# The host's values may name files that do not exist there.
unset LD_LIBRARY_PATH LD_PRELOAD CARGO_HOME RUSTUP_HOME CARGO RUSTUP_TOOLCHAIN CARGO_TARGET_DIR
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root

# shellcheck disable=SC2016 # for the inner shell
exec unshare --mount --propagation private sh -euc '
    root=$cache/root
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    # A /dev of its own, with the nodes of a container. /dev/infiniband exists, so that the launcher need only fill it.
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for node in null zero full random urandom tty; do
        : >"$root/dev/$node"
        mount --bind "/dev/$node" "$root/dev/$node"
    done
    mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/infiniband"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount --bind -o ro "$source" "$root/roxie"
    mount --bind "$target" "$root/roxie/target"
    # Resolver settings of the host.
    for file in resolv.conf hosts; do
        if [ -e "/etc/$file" ]; then
            [ -e "$root/etc/$file" ] || : >"$root/etc/$file"
            mount --bind -o ro "/etc/$file" "$root/etc/$file"
        fi
    done
    if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
        cp /etc/ssl/certs/ca-certificates.crt "$root/run/certificates"
        export SSL_CERT_FILE=/run/certificates CARGO_HTTP_CAINFO=/run/certificates
    fi
    cd "$root"
    mkdir -p mnt
    pivot_root . mnt
    umount -l /mnt
    cd "${INSIDE:-/}"
    exec "$@"' sh "$@"
