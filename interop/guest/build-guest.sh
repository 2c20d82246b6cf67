#!/usr/bin/env bash
# Builds a rdma_rxe guest: a Debian kernel, its suite's RDMA tools and the peer program, as a kernel image and an
# initramfs that QEMU boots directly. Nothing is installed on the host.
#
#   build-guest.sh [--check] [--refresh] [--kernel 6.1|6.12|newest]
#
#   --check    only print which programs the host lacks
#   --refresh  download the packages again; by default the cached ones are used
#   --kernel   6.1: Debian 12's. 6.12: Debian 13's. newest: the newest of Debian's, with the tools of the same suite
#
# Prints the folder that holds `vmlinuz`, `initramfs.gz` and `peer` as its last line of output. Exits with 3 if the
# host lacks programs, with 4 if the packages are not available. The cache is $ROXIE_CACHE, by default
# target/interop/cache of the workspace, with a folder for each kernel:
#
#   debs/            packages as downloaded
#   root/            the same, unpacked
#   guest-<hash>/    finished guests, by a hash of all inputs; `outside` is mounted in the guest
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
agent=$here/../../src/conform/bench/agent.c
top=${ROXIE_CACHE:-$here/../../target/interop/cache}
kernel=6.1

# Modules by need: the NIC, RoCE, its user interfaces, emulated networks.
modules=(virtio_pci virtio_net rdma_rxe ib_uverbs rdma_ucm ib_umad sch_netem)
# Packed always; loaded when the guest needs the host's files or a program of `outside`.
modules_for_host=(9pnet_virtio 9p overlay)
# Packed always; loaded by the scripts `nvme` and `iser` when a row needs them.
modules_for_disks=(nvme-rdma nvmet-rdma nvme-tcp nvmet-tcp ib_iser ib_isert target_core_iblock sd_mod brd ext4)
# Packed always; loaded by the script `nfs` when a row needs them.
modules_for_files=(rpcrdma nfsv3 nfsd)
# Packed always; loaded by the script `links` when a row needs them.
modules_for_links=(8021q bonding veth)
# If the kernel has them: 6.1's rxe requests "crc32" by name, and without crc32_generic `rdma link add` fails with
# ENOENT; ext4 requests "crc32c". Later kernels have both built in.
modules_if_there=(crc32_generic crc32c_generic)
programs=(
    rdma ip ibv_devices ibv_devinfo ibv_rc_pingpong ibv_srq_pingpong ibv_uc_pingpong ibv_ud_pingpong
    rping ucmatose udaddy rdma_server rdma_client rdma_xserver rdma_xclient rstream riostream
    mckey cmtime qperf mke2fs e2fsck iscsid iscsiadm rpcbind rpc.mountd exportfs
    ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw ib_atomic_lat
)
# Scripts of this folder, in the guest with roxie- before their names.
scripts=(disk nvme iser nfs links)
# Programs with libraries of 80 MB, which the guest would unpack at each start. They stay in a folder outside, which the
# guest mounts over 9p (with `modules_for_host`) when one of them is first started.
outside=(fio)

say() { printf 'build-guest: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# shellcheck source=packages.sh
. "$here/packages.sh"

# Checks for all host programs that building or running the guest needs. Prints the missing ones and the command that
# installs them. False if any is missing.
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

# Prints the version of rdma-core, e.g. 44.0: the end of libibverbs' version for pkg-config, 1.14.44.0.
rdma_core_version() {
    sed -n 's/^Version: [0-9]*\.[0-9]*\.//p' "$cache/root/usr/lib/x86_64-linux-gnu/pkgconfig/libibverbs.pc"
}

# Prints it as definitions for the peer program.
rdma_core_defines() {
    local version
    version=$(rdma_core_version)
    echo "-DRDMA_CORE_MAJOR=${version%%.*} -DRDMA_CORE_MINOR=${version#*.}"
}

# Compiles a program `$1` of the sources and options that follow, with the guest's libibverbs and this host's C library, which must not be
# newer than the guest's. Symbols that the guest's libraries need of each other are resolved in the guest.
compile() {
    local program=$1 root=$cache/root lib=$cache/root/usr/lib/x86_64-linux-gnu
    shift
    gcc -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -I"$root/usr/include" "$@" -o "$program" \
        -L"$lib" -Wl,-rpath-link,"$lib" -Wl,--unresolved-symbols=ignore-in-shared-libs -l:libibverbs.so.1
}

# Copies `$1` (a path in the unpacked root, or the file $3) with all its libraries, recursively, to the tree `$2`.
add_elf() {
    local path=$1 tree=$2 from=${3:-$cache/root/$1} name
    [ -e "$tree/$path" ] && return 0
    [ -e "$from" ] || die "$path is not in the downloaded packages; try --refresh"
    mkdir -p "$tree/$(dirname "$path")"
    cp -L --preserve=mode "$from" "$tree/$path"
    for name in $(readelf -d "$from" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        case $name in
        ld-linux-x86-64.so.2) add_elf lib64/ld-linux-x86-64.so.2 "$tree" "$cache/root/usr/lib/x86_64-linux-gnu/$name" ;;
        *) add_elf "$(library_path "$name")" "$tree" ;;
        esac
    done
}

# Prints a library's path in the unpacked root; some have a folder of their own (ceph/).
library_path() {
    local path
    for path in "$cache"/root/lib/x86_64-linux-gnu/{,*/}"$1"; do
        if [ -e "$path" ]; then
            echo "${path#"$cache/root/"}"
            return
        fi
    done
    die "$1 is not in the downloaded packages; try --refresh"
}

# Copies the programs of `outside` with their libraries to `$2`, and a script for each to the guest's tree `$1`.
add_outside() {
    local tree=$1 outside_tree=$2 name lib=lib/x86_64-linux-gnu
    for name in "${outside[@]}"; do
        add_elf "usr/bin/$name" "$outside_tree" "$cache/root/$(program_path "$name")"
        cat >"$tree/usr/bin/$name" <<EOF
#!/bin/sh
if ! grep -q ' /outside ' /proc/mounts; then
    for module in 9pnet_virtio 9p; do modprobe "\$module"; done
    mkdir -p /outside
    mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose outside /outside
fi
# The guest's own libraries first: they are in memory.
LD_LIBRARY_PATH=/$lib:/outside/$lib:/outside/$lib/ceph exec /outside/usr/bin/$name "\$@"
EOF
        chmod 0755 "$tree/usr/bin/$name"
    done
}

# Prints the release of the only kernel with downloaded modules.
kernel_version() {
    local folders=("$cache"/root/lib/modules/*)
    [ ${#folders[@]} -eq 1 ] || die "${#folders[@]} kernels in $cache/root/lib/modules, and should be one; try --refresh"
    basename "${folders[0]}"
}

# Prints the path of a kernel's image: in /boot, or with its modules since Debian 14.
kernel_image() {
    local path
    for path in "$cache/root/boot/vmlinuz-$1" "$cache/root/lib/modules/$1/vmlinuz"; do
        if [ -e "$path" ]; then
            echo "$path"
            return
        fi
    done
    die "the packages of kernel $1 have no vmlinuz; try --refresh"
}

# Prints a program's path in the unpacked root; the folder differs between suites.
program_path() {
    local folder
    for folder in usr/bin usr/sbin; do
        if [ -e "$cache/root/$folder/$1" ]; then
            echo "$folder/$1"
            return
        fi
    done
    die "$1 is not in the downloaded packages; try --refresh"
}

# Copies a module, decompressed: busybox's modprobe lacks the compression of later kernels.
add_module() {
    local file=$1 to=$2${1#"$cache/root"}
    mkdir -p "$(dirname "$to")"
    case $file in
    *.xz) xz -dc "$file" >"${to%.xz}" ;;
    *.zst)
        command -v zstd >/dev/null || die "this kernel's modules are compressed by zstd: apt-get install -y zstd"
        zstd -dcq "$file" >"${to%.zst}"
        ;;
    *) cp "$file" "$to" ;;
    esac
}

add_modules() {
    local tree=$1 version=$2 module file base=$cache/root
    local need=("${modules[@]}") packed shown=(modprobe -d "$base" -S "$version" -C /dev/null --show-depends)
    # The image package leaves modules.dep to its postinst.
    [ -e "$base/lib/modules/$version/modules.dep.bin" ] || depmod -b "$base" "$version"
    for module in "${modules_if_there[@]}"; do
        if "${shown[@]}" "$module" >/dev/null 2>&1; then need=("$module" "${need[@]}"); fi
    done
    packed=("${need[@]}" "${modules_for_host[@]}" "${modules_for_disks[@]}" "${modules_for_files[@]}" "${modules_for_links[@]}")
    for module in "${packed[@]}"; do
        # Built-in modules print "builtin NAME"; some insmod lines have parameters after the path.
        "${shown[@]}" "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | sort -u | while read -r file; do add_module "$file" "$tree"; done
    cp "$base/lib/modules/$version/modules.order" "$base/lib/modules/$version/"modules.builtin* "$tree/lib/modules/$version/"
    depmod -b "$tree" "$version"
    printf '%s\n' "${need[@]}" >"$tree/etc/modules"
}

# Packs a reproducible archive: time stamps and inode numbers do not depend on the build.
pack() {
    local tree=$1 out=$2
    find "$tree" -exec touch -h -d @0 {} +
    (cd "$tree" && find . -print0 | LC_ALL=C sort -z |
        cpio --null --create --format=newc --reproducible --owner=0:0 --quiet) | gzip -n -6 >"$out"
}

build() {
    local out=$1 tree version image path
    tree=$(mktemp -d)
    # shellcheck disable=SC2064  # the folder's name is wanted as it is now
    trap "rm -rf '$tree' '$out.new'" EXIT
    mkdir -p "$out.new"
    version=$(kernel_version)
    image=$(kernel_image "$version")
    say "building the guest of kernel $version, rdma-core $(rdma_core_version)"

    mkdir -p "$tree"/{bin,sbin,usr/bin,usr/sbin,lib/x86_64-linux-gnu,lib64,etc,proc,sys,dev,tmp,run,root}
    mkdir -p "$tree/lib/modules/$version"
    # libibverbs looks for its drivers below the compiled-in /usr/lib.
    ln -s ../lib "$tree/usr/lib"
    cp -L "$cache/root/bin/busybox" "$tree/bin/busybox"
    for path in bin/sh sbin/modprobe; do ln -s /bin/busybox "$tree/$path"; done
    for path in "${programs[@]}"; do
        path=$(program_path "$path")
        add_elf "usr/bin/$(basename "$path")" "$tree" "$cache/root/$path"
    done

    add_outside "$tree" "$out.new/outside"

    # librxe is named by a configuration file and loaded by path; libgcc_s by pthread_exit.
    path=$(cd "$cache/root" && find usr/lib -name 'librxe-rdmav*.so' | head -n 1)
    [ -n "$path" ] || die "ibverbs-providers has no librxe; try --refresh"
    add_elf "lib/x86_64-linux-gnu/libibverbs/$(basename "$path")" "$tree"
    mkdir -p "$tree/etc/libibverbs.d"
    echo "driver rxe" >"$tree/etc/libibverbs.d/rxe.driver"
    add_elf lib/x86_64-linux-gnu/libgcc_s.so.1 "$tree"

    # shellcheck disable=SC2046  # two words are meant
    compile "$out.new/peer" -Werror $(rdma_core_defines) "$here"/peer/*.c
    add_elf bin/roxie-peer "$tree" "$out.new/peer"
    compile "$out.new/agent" "$agent" -l:librdmacm.so.1
    add_elf bin/roxie-conform-agent "$tree" "$out.new/agent"
    add_modules "$tree" "$version"
    install -m 0755 "$here/init" "$tree/init"
    for path in "${scripts[@]}"; do install -m 0755 "$here/$path" "$tree/bin/roxie-$path"; done
    # The transports that programs with libtirpc listen on.
    cp "$cache/root/etc/netconfig" "$tree/etc/netconfig"

    pack "$tree" "$out.new/initramfs.gz"
    cp "$image" "$out.new/vmlinuz"
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
        --kernel) kernel=${2:-}; shift ;;
        *) die "unknown option $1; known: --check, --refresh, --kernel" ;;
        esac
        shift
    done
    sources "$kernel" >/dev/null
    host_has_everything || exit 3

    mkdir -p "$top/$kernel"
    top=$(cd "$top" && pwd)
    cache=$top/$kernel
    # Two runners may start at once; the second finds the first one's guest.
    exec 9>"$cache/lock"
    flock 9
    if [ $refresh = yes ] || ! cache_is_complete; then download; fi
    [ -d "$cache/root" ] || unpack

    hash=$( (cd "$cache/debs" && ls; cat "$here/build-guest.sh" "$here/init" "${scripts[@]/#/$here/}" "$here"/peer/*.[ch] "$agent"; gcc --version) |
        sha256sum | cut -c1-16)
    out=$cache/guest-$hash
    if [ ! -d "$out" ]; then
        rm -rf "$cache"/guest-*.new
        # Keep a few former versions: worktrees may share the cache.
        { ls -dt "$cache"/guest-* 2>/dev/null || true; } | tail -n +4 | xargs -r rm -rf
        build "$out"
    fi
    echo "$out"
}

main "$@"
