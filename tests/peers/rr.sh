# Part of tests/peers/run: echo servers beside a plain epoll server (epoll.rs), in turns, with the same client (sheafio rr):
# kernel sockets by io_uring (--stack kernel) and our own TCP/IP over AF_XDP (--stack user). FLOWS="1 100" and
# SIZES="64" run a part. The client runs on CPU 0, the server on CPU 1; on a veth each also does the other's softirqs, for
# what one sends is received on its CPU.
#
# Server cycles a transaction: of epoll, the process's time on the CPU (/proc/PID/schedstat) at the frequency of the
# time-stamp counter; of ours, the busy cycles of its lcore, which spins. Both include connecting.

server_of() { # WHO PORT: starts it in the background, its output in $work/server
  case $1 in
    epoll) ip netns exec "$b" taskset -c 1 "$built/epoll" "10.0.0.2:$2" >"$work/server" 2>"$work/server.err" & ;;
    kernel) ip netns exec "$b" "$sheafio" echo --stack kernel --tcp "$2" --cores 1 --json --hugepages off --duration 120s >"$work/server" 2>"$work/server.err" & ;;
    user) ip netns exec "$b" "$sheafio" echo --stack user -p vd --tcp "$2" --cores 1 --json --duration 120s >"$work/server" 2>"$work/server.err" & ;;
  esac
  server=$!
  running=("$server")
}
# once WHO FLOWS SIZE: appends "tps p50 cycles" to $work/WHO.FLOWS.SIZE
once() {
  local before=0 after=0 line cycles
  port=$((port + 1))
  server_of "$1" "$port"
  for _ in $(seq 50); do
    ip netns exec "$a" timeout 1 bash -c "exec 3<>/dev/tcp/10.0.0.2/$port" 2>/dev/null && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  if ! kill -0 "$server" 2>/dev/null; then
    echo "tests/peers/run: $1: $(tail -n 1 "$work/server.err")" >&2
    running=()
    return 1
  fi
  [ "$1" != epoll ] || before=$(cut -d' ' -f1 "/proc/$server/schedstat")
  line=$(ip netns exec "$a" timeout 100 "$sheafio" rr --to "10.0.0.2:$port" --flows "$2" --size "$3" \
    --duration "${seconds}s" --cores 0 --json 2>"$work/client.err" | tail -n 1) ||
    { echo "tests/peers/run: $1, $2 flows of $3 bytes: $(cat "$work/client.err")" >&2; }
  [ "$1" != epoll ] || after=$(cut -d' ' -f1 "/proc/$server/schedstat")
  kill "$server"
  wait "$server" 2>/dev/null || true
  running=()
  if [ "$1" = epoll ]; then
    cycles=$(jq -n --argjson ns "$((after - before))" --argjson mhz "$mhz" --argjson line "$line" \
      '$ns * $mhz / 1000 / ($line.transactions + $line.after_end)')
  else
    cycles=$(tail -n 1 "$work/server" | jq '.cycles_per_transaction // .lcores[0].cycles_per_transaction')
  fi
  jq -n -r --argjson line "$line" --argjson cycles "$cycles" '"\($line.tps) \($line.latency_us.p50) \($cycles)"' >>"$work/$1.$2.$3"
}

for netns in "$a" "$b"; do
  ip netns add "$netns"
  ip netns exec "$netns" sh -c 'echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6'
  ip -n "$netns" link set lo up
done
ip link add vg netns "$a" numrxqueues 1 numtxqueues 1 type veth peer name vd netns "$b" numrxqueues 1 numtxqueues 1
ip -n "$a" addr add 10.0.0.1/24 dev vg
ip -n "$b" addr add 10.0.0.2/24 dev vd
ip -n "$a" link set vg up
ip -n "$b" link set vd up
ip netns exec "$a" sh -c 'echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse; echo 1024 65535 >/proc/sys/net/ipv4/ip_local_port_range'
ip netns exec "$b" sh -c 'echo 65535 >/proc/sys/net/core/somaxconn; echo 65535 >/proc/sys/net/ipv4/tcp_max_syn_backlog'

mhz=$(awk -F': ' '/^cpu MHz/ { print $2; exit }' /proc/cpuinfo)
port=2000 servers=(epoll kernel user)
warm_up

echo "kernel $(uname -r), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $mhz MHz; medians of $rounds rounds of $seconds s"
printf '%6s %5s  %-7s %12s %8s %11s %9s %14s %9s\n' flows bytes server transact/s to-epoll "p50 us" to-epoll "server cycles" to-epoll
for flows in ${FLOWS:-1 100 1000 10000 15000}; do
  for size in ${SIZES:-1 64}; do
    for _ in $(seq "$rounds"); do
      for who in "${servers[@]}"; do once "$who" "$flows" "$size"; done
    done
    column() { cut -d' ' -f"$2" "$work/$1.$flows.$size" | median; }
    for who in "${servers[@]}"; do
      printf '%6s %5s  %-7s %12s %8s %11s %9s %14.0f %9s\n' "$flows" "$size" "$who" \
        "$(column "$who" 1)" "$(ratio "$(column "$who" 1)" "$(column epoll 1)")" \
        "$(column "$who" 2)" "$(ratio "$(column "$who" 2)" "$(column epoll 2)")" \
        "$(column "$who" 3)" "$(ratio "$(column "$who" 3)" "$(column epoll 3)")"
    done
  done
done
