# Sourced by build-guest.sh: Debian's packages for a guest, from a suite of their own.
#
# apt downloads with lists, sources and a package state apart from the host's, so that the guest of a kernel is the same on
# every release of Debian. apt verifies the index by its signature, and each package by the index.
#
#   $cache/debs/           packages as downloaded; `complete` has their names
#   $cache/root/           the same, unpacked

# Prints the mirror from which the host's apt has an archive.
apt_has() {
    timeout 60 apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 2>/dev/null | sed -n "s|/$1/*\$||p" | head -n 1 || true
}

mirror=${ROXIE_DEBIAN_MIRROR:-$(apt_has debian)}
security=${ROXIE_DEBIAN_MIRROR:-$(apt_has debian-security)}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# Packages of the guest, beside the kernel. Their libraries are found in the index.
packages=(busybox-static iproute2 ibverbs-utils rdmacm-utils perftest qperf fio e2fsprogs open-iscsi nfs-kernel-server rpcbind libtirpc-common
    ibverbs-providers libibverbs-dev librdmacm-dev libgcc-s1)

# Prints sources.list for a release of Debian.
stable() {
    echo "deb [signed-by=$keyring] $mirror/debian $1 main"
    echo "deb [signed-by=$keyring] ${security:-$mirror}/debian-security $1-security main"
}

# Prints sources.list for the kernel `$1`; for "newest", the suite with the newest linux-image-amd64.
sources() {
    case $1 in
    6.1) stable bookworm ;;
    6.12) stable trixie ;;
    newest) echo "deb [signed-by=$keyring] $mirror/debian sid main" ;;
    *) die "there is no guest of kernel $1: known are 6.1, 6.12 and newest" ;;
    esac
}

cache_is_complete() {
    [ "$(cat "$cache/debs/complete" 2>/dev/null)" = "${packages[*]}" ]
}

# Runs apt-get or apt-cache with state of its own in `$lists`. apt's sandbox user cannot write below a private home, so
# downloads run as the caller. A mirror that does not answer is retried after 1, 2, 4 and 8 s.
apt_here() {
    local program=$1
    shift
    timeout --foreground --kill-after=10 1800 "$program" -q -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any -o Acquire::Retries=4 \
        -o Acquire::Languages=none -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 \
        -o Dir::Etc::SourceList="$lists/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o Dir::State="$lists" -o Dir::State::Lists="$lists/lists" -o Dir::State::Status="$lists/status" \
        -o Dir::Cache="$lists/cache" "$@"
}

# Prints the kernel image on which linux-image-amd64 depends in the index, e.g. linux-image-6.1.0-40-amd64.
kernel_package() {
    apt_here apt-cache depends linux-image-amd64 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*-amd64\)$/\1/p' | head -n 1
}

# Prints the packages `$@` and, recursively, the libraries and the parts of a kernel on which they depend. Names differ
# between suites (libelf1, libelf1t64), and a kernel has one package or several, so they are taken from the index.
with_libraries() {
    local -A seen=()
    local todo=("$@") name
    while [ ${#todo[@]} -gt 0 ]; do
        for name in "${todo[@]}"; do seen[$name]=1; done
        mapfile -t todo < <(apt_here apt-cache depends --important "${todo[@]}" 2>/dev/null |
            sed -n 's/^ [ |]\(Pre\)\?Depends: \(lib[^ :]*\|zlib1g\|linux-\(base\|binary\|modules\)-[0-9][^ ]*\)$/\2/p' | sort -u)
        for name in "${!todo[@]}"; do
            if [ -n "${seen[${todo[name]}]:-}" ]; then unset "todo[name]"; fi
        done
        todo=("${todo[@]}")
    done
    printf '%s\n' "${!seen[@]}" | sort
}

# Reports that `$1` is not available; `$2` is apt's log.
network_failed() {
    say "$1 cannot be had from $mirror: $(grep -E '^(E|Err|W):' "$2" | tail -n 2 | tr '\n' ' ')"
    say "check the network (or set ROXIE_DEBIAN_MIRROR to a mirror's http://HOST) and run again; what $cache holds is left as it was"
    exit 4
}

download() {
    local kernel_image wanted new=$cache/debs.new
    lists=$cache/apt.new
    [ -e "$keyring" ] || die "$keyring is missing: install debian-archive-keyring"
    [ -n "$mirror" ] || die "apt has no Debian mirror here: set ROXIE_DEBIAN_MIRROR to one (http://HOST)"
    rm -rf "$new" "$lists"
    mkdir -p "$new" "$lists"/lists/partial "$lists"/cache/archives/partial
    : >"$lists/status"
    sources "$kernel" >"$lists/sources.list"
    say "reading the package index for kernel $kernel"
    apt_here apt-get update >"$lists/log" 2>&1 || network_failed "the package index" "$lists/log"
    kernel_image=$(kernel_package)
    [ -n "$kernel_image" ] || die "the index knows no kernel that linux-image-amd64 stands for: $(cat "$lists/sources.list")"
    mapfile -t wanted < <(with_libraries "$kernel_image" "${packages[@]}")
    say "downloading $kernel_image and ${#wanted[@]} packages to $cache/debs"
    (cd "$new" && apt_here apt-get download "${wanted[@]}" >"$lists/log" 2>&1) ||
        network_failed "a package" "$lists/log"
    echo "${packages[*]}" >"$new/complete"
    rm -rf "$cache/debs" "$cache/root" "$lists"
    mv "$new" "$cache/debs"
}

unpack() {
    local deb
    say "unpacking"
    rm -rf "$cache/root" "$cache/root.new"
    mkdir -p "$cache/root.new"
    # Merged /usr, so that packages with and without it put libraries in the same place.
    mkdir -p "$cache/root.new/usr/bin" "$cache/root.new/usr/sbin" "$cache/root.new/usr/lib"
    ln -s usr/bin "$cache/root.new/bin"
    ln -s usr/sbin "$cache/root.new/sbin"
    ln -s usr/lib "$cache/root.new/lib"
    for deb in "$cache"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$cache/root.new" --keep-directory-symlink
    done
    mv "$cache/root.new" "$cache/root"
}
