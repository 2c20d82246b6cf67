#!/usr/bin/env bash
# Builds a guest as build-guest.sh does, with the kernel's SMB server (ksmbd) on top, and its transport over RDMA.
#
#   build-ksmbd.sh [--check]
#
#   --check    only print which programs the host lacks
#
# Debian's kernel 6.1 has ksmbd without CONFIG_SMB_SERVER_SMBDIRECT, so the module is built again from Debian's sources of the
# same version, by this host's gcc, against the kernel's headers. Nothing is installed on the host.
#
# Prints the guest's folder as its last line of output, with the files of build-guest.sh's. Exits with 3 if the host lacks programs,
# with 4 if the packages are not available. The cache is $ROXIE_CACHE, as build-guest.sh has it; in its folder 6.1/ksmbd:
#
#   debs/, root/     headers and sources as downloaded (160 MB), and unpacked
#   tools/           the same of ksmbd-tools, with its libraries
#   fs/              the kernel's folder fs/smb, and what is built in it
#   guest-<hash>/    the finished guest
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=${ROXIE_CACHE:-$here/../../target/interop/cache}
kernel=6.1
# Suite of ksmbd-tools. That of Debian 12, 3.4.7, has another message for a share's configuration than later kernels 6.1 accept.
tools=trixie
# Seconds that the module's build may take. It has taken 50 on a busy core.
build_limit=900

say() { printf 'build-ksmbd: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# shellcheck source=packages.sh
. "$here/packages.sh"

# Checks for the programs of build-guest.sh, and for make.
host_has_everything() {
    local ok=yes
    "$here/build-guest.sh" --check || ok=no
    if ! command -v make >/dev/null; then
        say "this host lacks make: apt-get install -y --no-install-recommends make"
        ok=no
    fi
    [ $ok = yes ]
}

# Downloads packages to `$1`/debs: from the suites of kernel 6.1, or from the suite `$2` if there is one. The arguments that follow are
# packages; `$3` says in one word which versions they are.
fetch() {
    local folder=$1 suite=$2 what=$3 new=$1/debs.new
    shift 3
    lists=$folder/apt.new
    rm -rf "$new" "$lists"
    mkdir -p "$new" "$lists"/lists/partial "$lists"/cache/archives/partial
    : >"$lists/status"
    if [ -n "$suite" ]; then
        echo "deb [signed-by=$keyring] $mirror/debian $suite main" >"$lists/sources.list"
    else
        sources "$kernel" >"$lists/sources.list"
    fi
    say "downloading $what to $folder/debs"
    apt_here apt-get update >"$lists/log" 2>&1 || network_failed "the package index" "$lists/log"
    if [ -n "$suite" ]; then mapfile -t packages < <(with_libraries "$@"); else packages=("$@"); fi
    (cd "$new" && apt_here apt-get download "${packages[@]}" >"$lists/log" 2>&1) ||
        network_failed "a package (build-guest.sh --refresh downloads a kernel whose sources there are)" "$lists/log"
    echo "$what" >"$new/complete"
    rm -rf "$folder/debs" "$folder/root" "$lists"
    mv "$new" "$folder/debs"
}

# Unpacks the packages in `$1`/debs to `$1`/root.
unpack_in() {
    local cache=$1
    [ -d "$cache/root" ] || unpack
}

# Builds ksmbd.ko with its transport over RDMA, for the kernel `$1`.
build_module() {
    local version=$1 headers=$cache/root/usr/src/linux-headers-$1
    rm -rf "$cache/fs" "$cache/fs.new"
    mkdir "$cache/fs.new"
    tar -x -J -C "$cache/fs.new" --strip-components=2 -f "$cache/root/usr/src/linux-source-6.1.tar.xz" \
        linux-source-6.1/fs/smb linux-source-6.1/fs/internal.h linux-source-6.1/scripts/asn1_compiler.c
    # The headers name each other where a package would install them.
    sed -i "s|^include /usr/src/|include $cache/root/usr/src/|" "$headers/Makefile"
    # Debian's packages have all programs of the kernel's build but this one.
    gcc -O2 -I"${headers%-amd64}-common/include" -o "$headers/scripts/asn1_compiler" "$cache/fs.new/asn1_compiler.c"
    say "building ksmbd of $version"
    # The option is off in the headers' configuration: for make it is a variable, for the compiler a macro.
    timeout --kill-after=10 "$build_limit" nice make -C "$headers" M="$cache/fs.new/smb/server" \
        CONFIG_SMB_SERVER_SMBDIRECT=y KCFLAGS=-DCONFIG_SMB_SERVER_SMBDIRECT=1 modules >"$cache/module.log" 2>&1 ||
        die "the module cannot be built: $(tail -n 5 "$cache/module.log")"
    strip --strip-debug "$cache/fs.new/smb/server/ksmbd.ko"
    mv "$cache/fs.new" "$cache/fs"
}

# Copies the program or library `$1` of ksmbd-tools' release with all its libraries to the folder `$2`.
add_elf() {
    local from=$1 to=$2 name folder
    [ -e "$to/$(basename "$from")" ] && return
    cp -L --preserve=mode "$from" "$to/"
    for name in $(readelf -d "$from" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        folder=$cache/tools/root/usr/lib/x86_64-linux-gnu
        [ -e "$folder/$name" ] || die "$name is not in the downloaded packages"
        add_elf "$folder/$name" "$to"
    done
}

# Copies the module `$1` and those that it needs to the tree, as far as the guest has none.
add_module() {
    local file base=$2 version=$3 root=$top/$kernel/root
    modprobe -d "$root" -S "$version" -C /dev/null --show-depends "$1" | sed -n 's/^insmod \([^ ]*\).*/\1/p' |
        while read -r file; do
            file=${file#"$root"}
            [ -e "$base$file" ] || { mkdir -p "$tree$(dirname "$file")" && cp "$root$file" "$tree$file"; }
        done
}

# Makes the guest `$2` of the guest `$1`: the kernel unpacks the archives in an initramfs one after another.
build() {
    local guest=$1 out=$2 version temporary base tree module name
    version=$(cat "$guest/kernel")
    temporary=$(mktemp -d)
    # shellcheck disable=SC2064  # the folder's name is wanted as it is now
    trap "rm -rf '$temporary' '$out.new'" EXIT
    base=$temporary/base tree=$temporary/tree
    mkdir -p "$base" "$tree/lib/modules/$version" "$tree/bin" "$tree/usr/bin"
    gzip -dc "$guest/initramfs.gz" | (cd "$base" && cpio --extract --make-directories --quiet)
    # Algorithms that the server requests by name, where the kernel has them as modules.
    for module in ksmbd ecb hmac md5 nls_utf8 cmac sha256_generic sha512_generic aes_generic ccm gcm; do
        add_module "$module" "$base" "$version"
    done
    cp "$cache/fs/smb/server/ksmbd.ko" "$tree/lib/modules/$version/kernel/fs/smb/server/ksmbd.ko"
    cp -r "$tree/lib/modules/$version" "$base/lib/modules/"
    depmod -b "$base" "$version"
    cp "$base/lib/modules/$version"/modules.* "$tree/lib/modules/$version/"
    name=$(find "$cache/tools/root/usr" -type f \( -name ksmbd.tools -o -name ksmbd.mountd \) | head -n 1)
    [ -n "$name" ] || die "ksmbd-tools has no ksmbd.mountd"
    # A release's programs run with its own C library.
    mkdir -p "$tree/ksmbd"
    add_elf "$name" "$tree/ksmbd"
    mv "$tree/ksmbd/$(basename "$name")" "$tree/ksmbd/ksmbd.mountd"
    printf '%s\n' '#!/bin/sh' 'exec /ksmbd/ld-linux-x86-64.so.2 --library-path /ksmbd --argv0 ksmbd.mountd /ksmbd/ksmbd.mountd "$@"' \
        >"$tree/usr/bin/ksmbd.mountd"
    chmod 0755 "$tree/usr/bin/ksmbd.mountd"
    install -m 0755 "$here/smb" "$tree/bin/roxie-smb"
    rm -rf "$out.new"
    cp -al "$guest" "$out.new"
    rm "$out.new/initramfs.gz"
    find "$tree" -exec touch -h -d @0 {} +
    (cd "$tree" && find . -print0 | LC_ALL=C sort -z |
        cpio --null --create --format=newc --reproducible --owner=0:0 --quiet) | gzip -n -6 >"$temporary/more.gz"
    cat "$guest/initramfs.gz" "$temporary/more.gz" >"$out.new/initramfs.gz"
    mv "$out.new" "$out"
}

main() {
    local guest version package_version what name wanted=() hash out
    export PATH=$PATH:/sbin:/usr/sbin
    case ${1:-} in
    "") ;;
    --check) host_has_everything; exit ;;
    *) die "unknown option $1; known: --check" ;;
    esac
    host_has_everything || exit 3
    guest=$("$here/build-guest.sh" --kernel "$kernel" | tail -n 1)
    top=$(cd "$top" && pwd)
    cache=$top/$kernel/ksmbd
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    version=$(cat "$guest/kernel")
    package_version=$(dpkg-deb -f "$top/$kernel/debs/linux-image-$version"_*.deb Version)
    what=kernel-$package_version
    if [ "$(cat "$cache/debs/complete" 2>/dev/null)" != "$what" ]; then
        for name in "linux-headers-$version" "linux-headers-${version%-amd64}-common" linux-kbuild-6.1 linux-source-6.1; do
            wanted+=("$name=$package_version")
        done
        rm -rf "$cache/fs"
        fetch "$cache" "" "$what" "${wanted[@]}"
    fi
    unpack_in "$cache"
    [ -d "$cache/fs" ] || build_module "$version"
    what=ksmbd-tools-$tools
    mkdir -p "$cache/tools"
    if [ "$(cat "$cache/tools/debs/complete" 2>/dev/null)" != "$what" ]; then fetch "$cache/tools" "$tools" "$what" ksmbd-tools; fi
    unpack_in "$cache/tools"
    hash=$( (echo "$guest"; cat "$here/build-ksmbd.sh" "$here/smb"; sha256sum <"$cache/fs/smb/server/ksmbd.ko") | sha256sum | cut -c1-16)
    out=$cache/guest-$hash
    if [ ! -d "$out" ]; then
        rm -rf "$cache"/guest-*.new
        # Worktrees may share the cache.
        { ls -dt "$cache"/guest-* 2>/dev/null || true; } | tail -n +4 | xargs -r rm -rf
        build "$guest" "$out"
    fi
    echo "$out"
}

main "$@"
