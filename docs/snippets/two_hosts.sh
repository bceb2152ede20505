# Makes two hosts of one machine, runs a program on two ranks of each, and removes them.
set -e
ip netns add node1
ip netns add node2
trap 'ip netns del node1; ip netns del node2' EXIT
ip link add eth0 netns node1 type veth peer name eth0 netns node2 # a cable between the two
number=0
for node in node1 node2; do
    number=$((number + 1))
    ip -n $node address add 10.93.7.$number/24 dev eth0
    ip -n $node link set lo up
    ip -n $node link set eth0 up
done
until ip -n node1 link show eth0 | grep -q 'state UP' && ip -n node2 link show eth0 | grep -q 'state UP'; do sleep 0.1; done
ncclx run --rsh 'ip netns exec' --hosts node1:2,node2:2 --rendezvous 10.93.7.1 "$@"
