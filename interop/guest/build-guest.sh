#!/usr/bin/env bash
# Builds the rdma_rxe guest: Debian's kernel, stock RDMA tools and the peer program, as a kernel
# image and an initramfs that QEMU boots directly. Nothing is installed on the host.
#
#   build-guest.sh [--check] [--refresh]
#
#   --check    only say which programs the host lacks
#   --refresh  ask apt for newer packages; without it, what the cache holds is used
#
# Prints the folder that holds `vmlinuz`, `initramfs.gz` and `peer` as its last line of output.
# The cache is $ROXIE_CACHE, by default target/interop/cache of the workspace. Its layout:
#
#   debs/            packages as downloaded
#   root/            the same, unpacked
#   guest-<hash>/    finished guests, by a hash of everything that goes in
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${ROXIE_CACHE:-$here/../../target/interop/cache}

# What the guest is made of. The kernel package's name carries its version and is looked up.
packages=(
    busybox-static iproute2 ibverbs-utils rdmacm-utils perftest
    libibverbs1 ibverbs-providers librdmacm1 libibumad3 libibverbs-dev
    libnl-3-200 libnl-route-3-200 libpci3 libudev1 zlib1g libgcc-s1 libc6
    libmnl0 libcap2 libelf1 libbpf1 libbsd0 libmd0
)
# Modules by need: the NIC, RoCE, its user interfaces, and emulated networks. On 6.1 rxe asks
# for "crc32" by name, and without crc32_generic `rdma link add` fails with ENOENT.
modules=(virtio_pci virtio_net crc32_generic rdma_rxe ib_uverbs rdma_ucm ib_umad sch_netem)
programs=(
    usr/bin/rdma bin/ip
    usr/bin/ibv_devices usr/bin/ibv_devinfo
    usr/bin/ibv_rc_pingpong usr/bin/ibv_srq_pingpong usr/bin/ibv_uc_pingpong usr/bin/ibv_ud_pingpong
    usr/bin/rping usr/bin/ucmatose usr/bin/rdma_server usr/bin/rdma_client
    usr/bin/ib_send_bw usr/bin/ib_send_lat usr/bin/ib_write_bw usr/bin/ib_write_lat
    usr/bin/ib_read_bw usr/bin/ib_read_lat usr/bin/ib_atomic_bw usr/bin/ib_atomic_lat
)

say() { printf 'build-guest: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Every host program that building or running the guest needs, with the package that has it.
# Prints what is missing and the command that installs it; false if anything is.
host_has_everything() {
    local need missing=() debs=()
    local table=(
        qemu-system-x86_64:qemu-system-x86 gcc:gcc cpio:cpio gzip:gzip depmod:kmod modprobe:kmod
        readelf:binutils xz:xz-utils dpkg-deb:dpkg apt-get:apt apt-cache:apt sha256sum:coreutils
        flock:util-linux setpriv:util-linux ip:iproute2 tar:tar
    )
    for need in "${table[@]}"; do
        PATH=$PATH:/sbin:/usr/sbin command -v "${need%%:*}" >/dev/null && continue
        missing+=("${need%%:*}")
        debs+=("${need##*:}")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    say "this host lacks: ${missing[*]}"
    say "install them with: apt-get install -y --no-install-recommends $(printf '%s\n' "${debs[@]}" | sort -u | tr '\n' ' ')"
    return 1
}

# The newest kernel image that linux-image-amd64 stands for, e.g. linux-image-6.1.0-40-amd64.
kernel_package() {
    apt-cache depends linux-image-amd64 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*-amd64\)$/\1/p' | head -n 1
}

cache_is_complete() {
    local name
    for name in linux-image-* "${packages[@]/%/_*}"; do
        # shellcheck disable=SC2086  # the pattern is meant to expand
        ls "$cache"/debs/$name.deb >/dev/null 2>&1 || return 1
    done
}

download() {
    local kernel
    kernel=$(kernel_package)
    if [ -z "$kernel" ]; then
        die "apt knows no linux-image-amd64: run 'apt-get update' on a Debian host, or put the packages' .deb files in $cache/debs"
    fi
    say "downloading $kernel and ${#packages[@]} packages to $cache/debs"
    rm -rf "$cache/debs.new"
    mkdir -p "$cache/debs.new"
    # apt's sandbox user cannot write below a private home: download as ourselves.
    (cd "$cache/debs.new" &&
        apt-get -q -o APT::Sandbox::User=root download "$kernel" "${packages[@]}" >apt.log 2>&1) ||
        die "apt-get download failed; try 'apt-get update'. It said: $(tail -n 3 "$cache/debs.new/apt.log")"
    rm -f "$cache/debs.new/apt.log"
    rm -rf "$cache/debs" "$cache/root"
    mv "$cache/debs.new" "$cache/debs"
}

unpack() {
    local deb
    say "unpacking"
    rm -rf "$cache/root" "$cache/root.new"
    mkdir -p "$cache/root.new"
    # Hosts that merged /usr and packages that did not must agree on where a library is.
    mkdir -p "$cache/root.new/usr/bin" "$cache/root.new/usr/sbin" "$cache/root.new/usr/lib"
    ln -s usr/bin "$cache/root.new/bin"
    ln -s usr/sbin "$cache/root.new/sbin"
    ln -s usr/lib "$cache/root.new/lib"
    for deb in "$cache"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$cache/root.new" --keep-directory-symlink
    done
    mv "$cache/root.new" "$cache/root"
}

compile_peer() {
    local root=$cache/root lib=$cache/root/usr/lib/x86_64-linux-gnu
    gcc -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -I"$root/usr/include" "$here"/peer/*.c -o "$1" \
        -L"$lib" -Wl,-rpath-link,"$lib" -l:libibverbs.so.1
}

# Copies `$1` (a path in the unpacked root, or $3 for a file of ours) with every library it
# names, recursively, to the tree `$2`.
add_elf() {
    local path=$1 tree=$2 from=${3:-$cache/root/$1} name
    [ -e "$tree/$path" ] && return 0
    [ -e "$from" ] || die "$path is not in the downloaded packages; try --refresh"
    mkdir -p "$tree/$(dirname "$path")"
    cp -L --preserve=mode "$from" "$tree/$path"
    for name in $(readelf -d "$from" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        case $name in
        ld-linux-x86-64.so.2) add_elf lib64/ld-linux-x86-64.so.2 "$tree" "$cache/root/usr/lib/x86_64-linux-gnu/$name" ;;
        *) add_elf "lib/x86_64-linux-gnu/$name" "$tree" ;;
        esac
    done
}

add_modules() {
    local tree=$1 version=$2 module file base=$cache/root
    # The image package leaves modules.dep to its postinst.
    [ -e "$base/lib/modules/$version/modules.dep.bin" ] || depmod -b "$base" "$version"
    for module in "${modules[@]}"; do
        # Built-in ones print "builtin NAME"; some insmod lines carry parameters after the path.
        modprobe -d "$base" -S "$version" -C /dev/null --show-depends "$module" |
            sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | sort -u | while read -r file; do
        mkdir -p "$tree/$(dirname "${file#"$base"}")"
        case $file in
        *.xz) xz -dc "$file" >"$tree/${file#"$base"}" ; mv "$tree/${file#"$base"}" "$tree/$(dirname "${file#"$base"}")/$(basename "$file" .xz)" ;;
        *) cp "$file" "$tree/${file#"$base"}" ;;
        esac
    done
    cp "$base/lib/modules/$version/modules.order" "$base/lib/modules/$version/"modules.builtin* "$tree/lib/modules/$version/"
    depmod -b "$tree" "$version"
    printf '%s\n' "${modules[@]}" >"$tree/etc/modules"
}

# Newest time stamps and inode numbers stay out of the archive, so that the same inputs give
# the same bytes.
pack() {
    local tree=$1 out=$2
    find "$tree" -exec touch -h -d @0 {} +
    (cd "$tree" && find . -print0 | LC_ALL=C sort -z |
        cpio --null --create --format=newc --reproducible --owner=0:0 --quiet) | gzip -n -6 >"$out"
}

build() {
    local out=$1 tree version path
    tree=$(mktemp -d)
    # shellcheck disable=SC2064  # the folder's name is wanted as it is now
    trap "rm -rf '$tree' '$out.new'" EXIT
    mkdir -p "$out.new"
    version=$(basename "$(echo "$cache"/root/boot/vmlinuz-*)")
    version=${version#vmlinuz-}
    [ -e "$cache/root/boot/vmlinuz-$version" ] || die "the kernel package has no /boot/vmlinuz; try --refresh"
    say "building the guest of kernel $version"

    mkdir -p "$tree"/{bin,sbin,usr/bin,usr/sbin,lib/x86_64-linux-gnu,lib64,etc,proc,sys,dev,tmp,run,root}
    mkdir -p "$tree/lib/modules/$version"
    # libibverbs looks for its drivers below the compiled-in /usr/lib.
    ln -s ../lib "$tree/usr/lib"
    cp -L "$cache/root/bin/busybox" "$tree/bin/busybox"
    for path in bin/sh sbin/modprobe; do ln -s /bin/busybox "$tree/$path"; done
    for path in "${programs[@]}"; do add_elf "$path" "$tree"; done

    # librxe is named by a configuration file and loaded by path; libgcc_s by pthread_exit.
    path=$(cd "$cache/root" && find usr/lib -name 'librxe-rdmav*.so' | head -n 1)
    [ -n "$path" ] || die "ibverbs-providers has no librxe; try --refresh"
    add_elf "lib/x86_64-linux-gnu/libibverbs/$(basename "$path")" "$tree"
    mkdir -p "$tree/etc/libibverbs.d"
    echo "driver rxe" >"$tree/etc/libibverbs.d/rxe.driver"
    add_elf lib/x86_64-linux-gnu/libgcc_s.so.1 "$tree"

    compile_peer "$out.new/peer"
    add_elf bin/roxie-peer "$tree" "$out.new/peer"
    add_modules "$tree" "$version"
    install -m 0755 "$here/init" "$tree/init"

    pack "$tree" "$out.new/initramfs.gz"
    cp "$cache/root/boot/vmlinuz-$version" "$out.new/vmlinuz"
    echo "$version" >"$out.new/kernel"
    mv "$out.new" "$out"
    say "$(du -h "$out/initramfs.gz" | cut -f1) initramfs, kernel $version"
}

main() {
    local refresh=no hash out
    export PATH=$PATH:/sbin:/usr/sbin
    while [ $# -gt 0 ]; do
        case $1 in
        --check) host_has_everything; exit ;;
        --refresh) refresh=yes ;;
        *) die "unknown option $1; known: --check, --refresh" ;;
        esac
        shift
    done
    host_has_everything || exit 3

    mkdir -p "$cache"
    cache=$(cd "$cache" && pwd)
    # Two runners may start at once; the second finds the first one's guest.
    exec 9>"$cache/lock"
    flock 9
    if [ $refresh = yes ] || ! cache_is_complete; then download; fi
    [ -d "$cache/root" ] || unpack

    hash=$( (cd "$cache/debs" && ls; cat "$here/build-guest.sh" "$here/init" "$here"/peer/*.[ch]; gcc --version) |
        sha256sum | cut -c1-16)
    out=$cache/guest-$hash
    if [ ! -d "$out" ]; then
        rm -rf "$cache"/guest-*.new
        # Former versions go, but for a few: worktrees may share the cache.
        { ls -dt "$cache"/guest-* 2>/dev/null || true; } | tail -n +4 | xargs -r rm -rf
        build "$out"
    fi
    echo "$out"
}

main "$@"
