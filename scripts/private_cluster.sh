#!/usr/bin/env bash
# A private network for the tasks of a cluster on several machines: an encrypted tunnel (WireGuard) is the only way in
# and out of a network namespace, so that the ports that TensorFlow opens on all addresses are open in the tunnel alone.
#
#   scripts/private_cluster.sh key             makes this machine's key, once, and prints its public half for the list
#   scripts/private_cluster.sh up LIST         LIST has a line for each machine, the same everywhere:
#                                              NAME PUBLIC_KEY HOST:PORT   (HOST:PORT is where its tunnel ends, by UDP)
#   scripts/private_cluster.sh run COMMAND...  runs a task there, as whoever called sudo; hosts are called NAME there
#   scripts/private_cluster.sh down
#
# On every machine, as root. Needs iproute2, wireguard-tools, and wireguard-go where the kernel has no WireGuard.
# PRIVATE_CLUSTER=NAME in the environment is the namespace, tf by default: one for each cluster of a machine.
set -euo pipefail
name=${PRIVATE_CLUSTER:-tf} net=10.86.0
key=/etc/wireguard/$name.key hosts=/etc/netns/$name/hosts

fail() { echo "private_cluster.sh: $*" >&2; exit 1; }

remove() {
    ip -n "$name" link delete "$name" || ip link delete "$name" || true  # wireguard-go ends with its interface.
    ip netns delete "$name" || true
    rm -rf "/etc/netns/$name"
} 2>/dev/null

up() {
    local own line=0 host public endpoint me=
    [ ! -e "/run/netns/$name" ] || fail "namespace $name is there already: private_cluster.sh down ends it"
    [ -f "$key" ] || fail "no key: private_cluster.sh key makes one"
    own=$(wg pubkey <"$key")
    trap remove EXIT
    ip link add "$name" type wireguard 2>/dev/null || wireguard-go "$name" >/dev/null 2>&1 ||
        fail "neither the kernel nor wireguard-go makes a tunnel here (apt-get install wireguard-go; /dev/net/tun)"
    mkdir -p "/etc/netns/$name"
    echo "127.0.0.1 localhost" >"$hosts"
    while read -r host public endpoint; do
        case $host in ''|'#'*) continue ;; esac
        line=$((line + 1))
        [ -n "$endpoint" ] || fail "$1: '$host $public' is not NAME PUBLIC_KEY HOST:PORT"
        echo "$net.$line $host" >>"$hosts"
        if [ "$public" = "$own" ]; then
            me=$host address=$net.$line
            wg set "$name" private-key "$key" listen-port "${endpoint##*:}"
        else  # No other address is taken from this key, and none sent to it.
            wg set "$name" peer "$public" allowed-ips "$net.$line/32" endpoint "$endpoint" persistent-keepalive 25
        fi
    done <"$1"
    [ -n "$me" ] || fail "$1 does not have this machine's key, $own"
    ip netns add "$name"
    ip link set "$name" netns "$name"  # Its own packets stay where it was made: in the machine's network.
    ip -n "$name" address add "$address/24" dev "$name"
    ip -n "$name" link set lo up
    ip -n "$name" link set "$name" up
    trap - EXIT
    echo "$me is $address, in namespace $name; its tunnel to $((line - 1)) others listens on UDP port" \
        "$(wg show "$name" listen-port)"
}

[ "$(id -u)" = 0 ] || fail "needs root: a namespace's way out begins in the machine's own network"
for tool in ip wg; do command -v $tool >/dev/null || fail "there is no $tool: apt-get install iproute2 wireguard-tools"; done
case ${1:-} in
    key)
        [ -f "$key" ] || (umask 077 && mkdir -p "${key%/*}" && wg genkey >"$key")
        wg pubkey <"$key" ;;
    up) [ -r "${2:-}" ] || fail "up needs the list of machines: a file"; up "$2" ;;
    run)
        shift
        if [ -n "${SUDO_UID:-}" ]; then  # Not as root: a task needs none of its rights.
            home=$(getent passwd "$SUDO_UID" | cut -d: -f6)
            set -- env HOME="$home" setpriv --reuid "$SUDO_UID" --regid "$SUDO_GID" --init-groups -- "$@"
        fi
        exec ip netns exec "$name" "$@" ;;
    down)
        tasks=$({ ip netns pids "$name" 2>/dev/null || true; } | wc -l)
        [ "$tasks" = 0 ] || fail "$tasks processes run in namespace $name: end them first"
        remove ;;
    *) sed -n '2,/^set/s/^# \?//p' "$0"; exit 2 ;;
esac
