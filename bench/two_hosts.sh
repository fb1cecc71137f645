#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# two_hosts.sh RATE PROGRAM [ARGUMENT...]: PROGRAM as two MPI ranks on two hosts that a link of RATE
# ("2500mbit", "10gbit") joins. The hosts are network namespaces of this machine, the link a veth
# pair; OpenMPI goes over TCP, since its ranks see two addresses. Wants root.
set -eu
[ $# -ge 2 ] || { sed -n '3,5s/^# //p' "$0" >&2; exit 2; }
rate=$1
shift
a=gt-host-1 b=gt-host-2 network=10.77.0
agent=$(mktemp)
trap 'rm -f "$agent"; ip netns del $a 2>/dev/null; ip netns del $b 2>/dev/null' EXIT
ip netns add $a
ip netns add $b
ip link add gt-link-1 netns $a type veth peer name gt-link-2 netns $b
for i in 1 2; do
    inside="ip netns exec gt-host-$i"
    $inside ip link set lo up
    $inside ip addr add $network.$i/24 dev gt-link-$i
    $inside ip link set gt-link-$i up
    $inside tc qdisc add dev gt-link-$i root tbf rate "$rate" burst 512kb latency 50ms
done
# In place of ssh: its first argument is the other host's address.
cat >"$agent" <<AGENT
#!/bin/bash
shift
exec ip netns exec $b bash -c "\$*"
AGENT
chmod +x "$agent"
ip netns exec $a mpirun --allow-run-as-root -n 2 --host $network.1:1,$network.2:1 \
    --mca plm_rsh_agent "$agent" --mca btl tcp,self --mca btl_tcp_if_include $network.0/24 \
    --mca oob_tcp_if_include $network.0/24 -x OMP_NUM_THREADS=1 "$@"
