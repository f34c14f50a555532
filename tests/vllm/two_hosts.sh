#!/bin/bash
# Two network hosts on this machine, each of which runs a command, and a third that looks on from between them:
#
#     unshare -Urnm --pid --fork --kill-child --mount-proc bash two_hosts.sh FOLDER HOST1 HOST2 COMMAND...
#
# HOST1 and HOST2 are executables; host N has the address 10.211.0.N, shared memory of its own, and its log and its
# process id in FOLDER. COMMAND runs beside them. Ending this ends everything. Where the machine does not allow all of
# it, this fails before a host runs.
set -eu
folder=$1 one=$2 two=$3
shift 3
mount -t tmpfs t /run
ip link set lo up
ip link add br0 type bridge
ip addr add 10.211.0.254/24 dev br0
ip link set br0 up
for i in 1 2; do
  ip netns add "h$i"
  ip link add "v$i" type veth peer name eth0 netns "h$i"
  ip link set "v$i" master br0 up
  ip -n "h$i" addr add "10.211.0.$i/24" dev eth0
  ip -n "h$i" link set eth0 up
  ip -n "h$i" link set lo up
done
setup='echo "$1" >/proc/sys/kernel/hostname && mount -t tmpfs t /dev/shm && exec "$2"'
host=(unshare --uts --ipc --mount -- bash -c "$setup" _)
ip netns exec h1 "${host[@]}" h1 true
for i in 1 2; do
  [ $i = 1 ] && run=$one || run=$two
  setsid ip netns exec "h$i" "${host[@]}" "h$i" "$run" >"$folder/$i.log" 2>&1 &
  echo $! >"$folder/$i.pid"
done
exec "$@"
