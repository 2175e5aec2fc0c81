#!/bin/sh
# The first process of a host: $1 is the host's folder, $2 its address, $3 the gateway, and $4 its
# address of IPv6, where the machine has that.
set -e
folder=$1
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/sshd
for file in passwd hosts resolv.conf; do
    mount --bind "$folder/etc/$file" "/etc/$file"
done
hostname "$(basename "$folder")"
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.01; done
ip address add "$2/24" dev eth0
test -z "$4" || ip address add "$4/64" dev eth0 nodad
ip link set eth0 up
ip route add default via "$3"
# What is particular about this host, like what an instance is told to do when it boots.
if test -f "$folder/etc/boot"; then . "$folder/etc/boot"; fi
/usr/sbin/sshd -f "$folder/etc/sshd_config" -E "$folder/sshd.log"
touch "$folder/up"
# What loses its parent becomes a child of this process, and is reaped by the waiting shell.
while :; do
    sleep 3600 &
    wait $!
done
