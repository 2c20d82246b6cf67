#!/usr/bin/env bash
# Plays a machine that runs a job: job.sh FOLDER KIND
#   FOLDER   has roxie.tar.gz, the action with .ci/action, and sudo
#   KIND     adapter    a hosted runner: a user with sudo, and an RDMA device of the kernel, mlx5_0
#            bare       the same, with a kernel that knows no RDMA
#            container  root without CAP_SYS_ADMIN, as in a container of a job
# To be run in mount, network and process namespaces of its own. The root directory is an overlay over this machine's.
# Each step is a new shell that gets only what the files of GITHUB_ENV and GITHUB_PATH say. Exit code 1: a step failed.
set -euo pipefail
export LC_ALL=C
folder=$1 kind=$2

disk=$folder/disk
mkdir "$disk"
mount -t tmpfs tmpfs "$disk"
mkdir "$disk/upper" "$disk/work" "$disk/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$disk/upper,workdir=$disk/work" "$disk/root"
cd "$disk/root"
mkdir -p home/runner
cp -a "$folder/roxie.tar.gz" "$folder/action" home/runner/
install -m 4755 "$folder/sudo" usr/bin/sudo
install -m 4755 usr/bin/ibv_devices usr/local/bin/setuid_devices
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
    IFS=: read -r name major minor <<<"$node"
    mknod -m 666 "dev/$name" c "$major" "$minor"
done
mkdir dev/pts dev/shm
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=1777 tmpfs dev/shm
pivot_root . mnt
cd /
umount -l /mnt
echo 'runner:x:4711:4711::/home/runner:/bin/bash' >>/etc/passwd
echo 'runner:x:4711:' >>/etc/group
chown -R 4711:4711 /home/runner
rm -f /etc/ld.so.preload

ip link set lo up
for link in eth0:198.51.100.1/24 docker0:172.17.0.1/16; do
    ip link add "${link%%:*}" type veth peer name "${link%%:*}-peer"
    ip link set "${link%%:*}-peer" up
    ip addr add "${link#*:}" dev "${link%%:*}"
    ip link set "${link%%:*}" up
done
ip route add default via 198.51.100.254 dev eth0

if [ "$kind" = adapter ]; then
    mkdir -p /run/class
    mount -t tmpfs tmpfs /run/class
    for class in /sys/class/*; do
        mkdir "/run/class/${class##*/}"
        mount --bind "$class" "/run/class/${class##*/}"
    done
    mkdir -p /run/class/infiniband/mlx5_0/ports/1 /run/class/infiniband_verbs/uverbs0 /run/class/infiniband_mad/umad0 /dev/infiniband
    echo '4: ACTIVE' >/run/class/infiniband/mlx5_0/ports/1/state
    echo mlx5_0 >/run/class/infiniband_verbs/uverbs0/ibdev
    mknod /dev/infiniband/umad0 c 1 3
    mount --rbind /run/class /sys/class
    umount -l /run/class
fi

as=(setpriv --reuid=runner --regid=runner --init-groups)
[ "$kind" != container ] || as=(setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin)
mkdir /run/files
touch /run/files/env /run/files/path /run/files/output
chmod -R a+rwX /run/files
failed=()

# step NAME COMMANDS: as a runner starts a step. `not COMMAND` fails it, which `!` does not.
step() {
    local name=$1 path line variable mark value given=()
    while IFS= read -r line; do
        variable=${line%%<<*} mark=${line#*<<} value=
        while IFS= read -r line && [ "$line" != "$mark" ]; do value+=${value:+$'\n'}$line; done
        given+=("$variable=$value")
    done </run/files/env
    path=$(tac /run/files/path | paste -sd:)
    echo "--- $name"
    env -i HOME=/home/runner USER=runner LANG=C CI=true GITHUB_ENV=/run/files/env GITHUB_PATH=/run/files/path GITHUB_OUTPUT=/run/files/output \
        "${given[@]}" PATH="${path:+$path:}/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin" \
        "${as[@]}" timeout --kill-after=5 60 bash --noprofile --norc -eo pipefail -c "cd ~; not() { ! \"\$@\"; }; $2" 2>&1 && echo "=== $name: passed" ||
        { failed+=("$name"); echo "=== $name: failed"; }
}
# ends SERVER CLIENT: both ends of a program; the client tries until the server is there.
ends() {
    printf '%s >server 2>&1 & server=$!
    for try in {1..50}; do if %s >client 2>&1; then break; fi; kill -0 $server || break; sleep 0.1; done
    wait $server || { cat server client; exit 1; }; tail -n 4 client' "$1" "$2"
}
install="ROXIE_PACKAGE=roxie.tar.gz ROXIE_ENABLE=auto action/.ci/action"
# The view, as programs and scripts list it.
lists='[ "$(ls /sys/class/infiniband)" = NAME ]; grep -qx "4: ACTIVE" /sys/class/infiniband/NAME/ports/1/state
    [ -c /dev/infiniband/NAME ]; [ -c /dev/infiniband/uverbs0 ]; [ "$(ls /dev/infiniband | wc -l)" = 3 ]; not ls /sys/class/infiniband_mad/umad0'
address=198.51.100.1

if [ "$kind" = container ]; then
    step action "$install"
    step 'ibv_devices' 'ibv_devices | tee list; grep -qw roxie0 list'
    step 'ibv_rc_pingpong' "$(ends 'ibv_rc_pingpong -g 1 -n 100' "ibv_rc_pingpong -g 1 -n 100 $address")"
    step rping "$(ends "rping -s -a $address -C 5" "rping -c -a $address -C 5 -v")"
    step removal '"$(which roxie)" disable; not ls /etc/ld.so.preload; not ls /etc/roxie.conf; ibv_devices >list 2>&1 || true; not grep roxie list'
else
    before='[ "$(ls /sys/class/infiniband)" = mlx5_0 ]; [ -e /sys/class/infiniband_mad/umad0 ]; [ "$(ls /dev/infiniband)" = umad0 ]'
    [ "$kind" = adapter ] || before='not ls /sys/class/infiniband; not ls /dev/infiniband'
    mounts=$(wc -l </proc/self/mountinfo)
    step before "$before; [ \$(id -un) = runner ]; [ \$(sudo -n id -u) = 0 ]"
    step action "ROXIE_NAME=mlx5_0 $install"
    step files "${lists//NAME/mlx5_0}; cat /etc/roxie.conf; grep -qx device=mlx5_0 /run/files/output
        env >list; not grep -E '^(LD_|ROXIE_)' list; grep -qx UCX_RNDV_THRESH=32k list; grep -q ^ASAN_OPTIONS= list"
    step 'ibv_devices' 'ibv_devices | tee list; grep -qw mlx5_0 list'
    step 'ibv_devinfo' 'ibv_devinfo | tee list; grep -q "hca_id:.mlx5_0" list; grep -q PORT_ACTIVE list; grep -q eth0 /sys/class/infiniband/mlx5_0/node_desc'
    step 'ibv_rc_pingpong' "$(ends 'ibv_rc_pingpong -g 1 -n 100' "ibv_rc_pingpong -g 1 -n 100 $address")"
    step 'ib_write_bw' "$(ends 'ib_write_bw -x 1 -F -n 1000' 'ib_write_bw -x 1 -F -n 1000 localhost')"
    step rping "$(ends "rping -s -a $address -C 5" "rping -c -a $address -C 5 -v")"
    step counters 'for try in {1..50}; do sent=$(cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data); [ "$sent" -le 1000000 ] || exit 0; sleep 0.1; done; exit 1'
    step 'ucx_info' 'ucx_info -d >all; grep -A 1 "Transport: rc_verbs" all | tee list; grep -q mlx5_0:1 list'
    step 'ucx_perftest' "$(ends 'UCX_TLS=rc_v,self timeout 30 ucx_perftest -t tag_bw -n 1000' 'UCX_TLS=rc_v,self timeout 30 ucx_perftest -t tag_bw -n 1000 localhost')"
    step 'fi_info' 'fi_info -p verbs -t FI_EP_MSG | tee list; grep -q "domain: mlx5_0" list'
    step pyverbs '/usr/bin/python3 -c "
import pyverbs.device as d
names = [device.name.decode() for device in d.get_device_list()]
print(names, d.Context(name=names[0]).query_port(1).state)"  | tee list; grep -q mlx5_0 list'
    step rdma 'rdma link | tee list; grep -q "mlx5_0/1 state ACTIVE" list'
    step sudo 'sudo ibv_devices | tee list; grep -qw mlx5_0 list; sudo rdma link | grep -q mlx5_0'
    step 'no variables' 'env -i /usr/bin/ibv_devices | grep -w mlx5_0'
    step 'a variable of a step' 'ROXIE_NAME=rxe5 ibv_devices | grep -w rxe5'
    step 'a setuid program' 'ROXIE_NAME=rxe5 setuid_devices | grep -w mlx5_0'
    step 'a sanitizer' 'echo "int main(void) { return 0; }" >a.c; cc -fsanitize=address -o a a.c; ./a'
    step 'roxie run' 'roxie run -q --dev lo --name rxe7 -- ibv_devices | tee list; grep -qw rxe7 list; not grep -w mlx5_0 list'
    step 'the action again' "cp /proc/self/mountinfo mounts; ROXIE_NAME=roxie0 $install; ibv_devices | grep -w roxie0
        ${lists//NAME/roxie0}; [ \$(wc -l </etc/ld.so.preload) = 1 ]; [ \$(wc -l </proc/self/mountinfo) = \$(wc -l <mounts) ]; [ \$(pgrep -xc roxie) = 1 ]"
    step 'without sudo' 'roxie disable 2>said && exit 1; cat said; grep -q "sudo roxie disable" said; ibv_devices | grep -w roxie0'
    step removal "sudo \"\$(which roxie)\" disable; sudo \"\$(which roxie)\" disable; $before; ibv_devices >list 2>&1 || true; not grep -e roxie -e mlx5 list
        for file in /etc/ld.so.preload /etc/roxie.conf /usr/lib/roxie-enabled; do not ls \$file; done; not pgrep -x roxie; [ \$(wc -l </proc/self/mountinfo) = $mounts ]"
fi
[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
