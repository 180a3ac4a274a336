# Part of tests/peers/run: echo servers in turns, with the same client (sheafio rr):
#
#   epoll    a plain epoll server (epoll.rs), which sleeps in epoll_wait(2) until there is something
#   spin     the same, which never sleeps: what of the others' gain is only that they poll
#   kernel   kernel sockets by io_uring (sheafio echo --stack kernel), which polls
#   user     our own TCP/IP over AF_XDP (--stack user), which polls
#
# FLOWS="1 100" and SIZES="64" run a part. 30000 among FLOWS is not a row of all, but what many flows cost --stack user: its
# cycles a transaction at 30,000 flows over those at 10, at the same rate of transactions ($many_rate/s, open loop: 30,000
# requests at once would wait for longer than the kernel's 200 ms until it sends them again). They are those of whole
# seconds in which all flows were connected and the rate was held, so connecting is not in them.
# USER_PORT=vd,ring=16384 gives --stack user rings that hold a request of each flow: all flows begin at once, and what the
# default of 2,048 slots does not hold is lost and sent again.
#
# The client runs on CPU 0, the server on CPU 1; on a veth each also does the other's softirqs, for what one sends is
# received on its CPU. Each round begins with another server, and each run with both CPUs warm.
#
# In the table server cycles a transaction include connecting and closing, and are counted the same way by all: by the
# time-stamp counter, in the turns of the server's loop that had work, divided by the transactions that the server counted.
#
# A run with any error, with dead flows or unanswered requests is in no median, and its row in no ratio: it has a ! behind it.

sources=(10.0.0.1 10.0.0.11) # A process may open 20,000 files on some machines, and a client with 30,000 flows is two.

server_of() { # WHO PORT FLOWS: starts it in the background, its output in $work/server
  local most=$(($3 > 16384 ? $3 + 16 : 16384)) # The warm-up's and the waiting script's connections beside the flows.
  case $1 in
    epoll) ip netns exec "$b" taskset -c 1 "$built/epoll" "10.0.0.2:$2" >"$work/server" 2>"$work/server.err" & ;;
    spin) ip netns exec "$b" taskset -c 1 "$built/epoll" "10.0.0.2:$2" spin >"$work/server" 2>"$work/server.err" & ;;
    kernel) ip netns exec "$b" "$sheafio" echo --stack kernel --tcp "$2" --cores 1 --json --hugepages off --idle spin \
      --duration 300s >"$work/server" 2>"$work/server.err" & ;;
    user) ip netns exec "$b" "$sheafio" echo --stack user -p "$user_port" --tcp "$2" --cores 1 --json --hugepages off \
      --idle spin --max-flows "$most" --duration 300s >"$work/server" 2>"$work/server.err" & ;;
  esac
  server=$!
  running=("$server")
}

# client PORT FLOWS SIZE [RATE]: runs sheafio rr, in as many processes as it takes; their last lines are in $work/client, their
# errors in $work/client.err. Fails if one of them does.
client() {
  local clients=1 pids=() pid at failed=0 rate=()
  [ "$2" -le 15000 ] || clients=2
  # Connected one after the other, they run side by side for a while.
  [ -z "${4:-}" ] || rate=(--rate $(($4 / clients)))
  rm -f "$work"/client.*
  for at in $(seq 0 $((clients - 1))); do
    ip netns exec "$a" timeout 100 "$sheafio" rr --to "10.0.0.2:$1" --from "${sources[at]}" --flows $(($2 / clients)) \
      --size "$3" --duration "$((seconds + (${#rate[@]} > 0 ? 4 : 0)))s" --cores 0 --json "${rate[@]}" >"$work/client.$at" 2>"$work/client.err.$at" &
    pids+=("$!")
  done
  running+=("${pids[@]}")
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  running=("$server")
  cat "$work"/client.err.* >"$work/client.err"
  for at in $(seq 0 $((clients - 1))); do tail -n 1 "$work/client.$at"; done >"$work/client"
  return "$failed"
}

# once WHO FLOWS SIZE [RATE]: appends "tps p50 cycles" to $work/WHO.FLOWS.SIZE, or what went wrong to $work/WHO.FLOWS.SIZE.bad.
once() {
  local cycles bad='' well
  port=$((port + 1))
  warm_up 2
  server_of "$1" "$port" "$2"
  for _ in $(seq 50); do
    ip netns exec "$a" timeout 1 bash -c "exec 3<>/dev/tcp/10.0.0.2/$port" 2>/dev/null && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  if kill -0 "$server" 2>/dev/null; then
    client "$port" "$2" "$3" "${4:-}" || bad='the client failed'
    # Whatever its exit code says: all flows live, every request was answered with its own bytes.
    well=$(jq -s -r --argjson flows "$2" 'length > 0 and ([.[].flows] | add) == $flows
      and all(.[]; .final and .tps > 0 and .errors.connect == {} and ([.errors | del(.connect) | .[]] | add) == 0)' "$work/client") || well=false
    if [ -n "$bad" ] || [ "$well" != true ]; then
      bad="$(jq -c '{flows} + (.errors // {} | with_entries(select(.value != 0 and .value != {})))' "$work/client" 2>/dev/null | tr '\n' ' ')"
      bad="clients: ${bad:-no result} $(head -n 1 "$work/client.err")"
    fi
    sleep 0.5 # All servers see the flows' ends.
    kill "$server" 2>/dev/null || true
  else
    bad="the server has ended"
  fi
  wait "$server" 2>/dev/null || bad=${bad:-"the server failed"}
  running=()
  cycles=$(tail -n 1 "$work/server" | jq '.cycles_per_transaction // .lcores[0].cycles_per_transaction')
  if [ -z "$bad" ] && [ -n "${4:-}" ]; then
    cycles=$(jq -r --argjson flows "$2" --argjson rate "$4" \
      'select((.final | not) and .flows == $flows and .tps > 0.9 * $rate) | .cycles_per_transaction' "$work/server" | median)
    [ "$cycles" != 0 ] || bad="no second in which all flows held the rate of $4/s"
  fi
  if [ -z "$bad" ]; then
    jq -s -r --argjson cycles "${cycles:-0}" '"\([.[].tps] | add) \([.[].latency_us.p50] | max) \($cycles)"' "$work/client" >>"$work/$1.$2.$3"
  else
    echo "$bad; $(tail -n 1 "$work/server.err")" >>"$work/$1.$2.$3.bad"
    echo "tests/peers/run: $1, $2 flows of $3 bytes: $bad; $(tail -n 1 "$work/server.err")" >&2
  fi
}

# The median of a column; a row without a good run has none. column WHO FLOWS SIZE COLUMN
column() {
  if [ -s "$work/$1.$2.$3" ]; then cut -d' ' -f"$4" "$work/$1.$2.$3" | median; else echo -; fi
}
# to REFERENCE WHO FLOWS SIZE COLUMN: the ratio, if all runs of both were good.
to() {
  if [ -e "$work/$1.$3.$4.bad" ] || [ -e "$work/$2.$3.$4.bad" ]; then echo -; return; fi
  ratio "$(column "$2" "$3" "$4" "$5")" "$(column "$1" "$3" "$4" "$5")"
}
# bad_runs WHO FLOWS SIZE: the mark of a row.
bad_runs() {
  [ ! -e "$work/$1.$2.$3.bad" ] || printf ' ! %s of %s runs went wrong' "$(wc -l <"$work/$1.$2.$3.bad")" "$rounds"
}
# rounds_of FLOWS SIZE SERVER...: runs them in turns, each round from the next one on.
rounds_of() {
  local flows=$1 size=$2 round at
  shift 2
  local who=("$@")
  for round in $(seq 0 $((rounds - 1))); do
    for at in $(seq 0 $(($# - 1))); do once "${who[(round + at) % $#]}" "$flows" "$size"; done
  done
}

for netns in "$a" "$b"; do
  ip netns add "$netns"
  ip netns exec "$netns" sh -c 'echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6'
  ip -n "$netns" link set lo up
done
ip link add vg netns "$a" numrxqueues 1 numtxqueues 1 type veth peer name vd netns "$b" numrxqueues 1 numtxqueues 1
for source in "${sources[@]}"; do ip -n "$a" addr add "$source/24" dev vg; done
ip -n "$b" addr add 10.0.0.2/24 dev vd
ip -n "$a" link set vg up
ip -n "$b" link set vd up
ip netns exec "$a" sh -c 'echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse; echo 1024 65535 >/proc/sys/net/ipv4/ip_local_port_range'
ip netns exec "$b" sh -c 'echo 65535 >/proc/sys/net/core/somaxconn; echo 65535 >/proc/sys/net/ipv4/tcp_max_syn_backlog'

user_port=${USER_PORT:-vd} many_rate=30000 port=2000 servers=(epoll spin kernel user)

echo "kernel $(uname -r), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), a veth; medians of $rounds rounds of $seconds s"
echo "user: $user_port: $(ip netns exec "$b" timeout 20 "$sheafio" echo --stack user -p "$user_port" --tcp "$port" --cores 1 \
  --hugepages off --idle spin --duration 1s 2>/dev/null | sed -n 's/^port 0: vd: //p')"
echo "no hugepages; waiting: epoll sleeps in epoll_wait(2), spin asks epoll_wait(2) without sleeping, kernel and user poll (--idle spin)"
echo "server cycles: time-stamp counter, in the turns of the server's loop that had work; spin, kernel and user: whole turns;"
echo "               epoll: from epoll_wait(2) to the next one, without that call, in which it sleeps: a lower bound"
echo "latency: of the client, from sending; its --idle adaptive polls 1,000 times, then it sleeps"
row='%6s %5s  %-7s %12s %8s %8s %11s %8s %8s %14s %8s %8s%s\n'
head_row() {
  # shellcheck disable=SC2059 # The format is the row's.
  printf "$row" flows bytes server transact/s to-epoll to-spin "p50 us" to-epoll to-spin "server cycles" to-epoll to-spin ''
}
print_row() { # WHO FLOWS SIZE
  # shellcheck disable=SC2059 # As above.
  printf "$row" "$2" "$3" "$1" \
    "$(column "$@" 1)" "$(to epoll "$@" 1)" "$(to spin "$@" 1)" \
    "$(column "$@" 2)" "$(to epoll "$@" 2)" "$(to spin "$@" 2)" \
    "$(column "$@" 3)" "$(to epoll "$@" 3)" "$(to spin "$@" 3)" "$(bad_runs "$@")"
}
has_many=false has_head=false
for flows in ${FLOWS:-1 100 1000 10000 15000 30000}; do
  if [ "$flows" = 30000 ]; then has_many=true; continue; fi
  $has_head || head_row
  has_head=true
  for size in ${SIZES:-1 64}; do
    rounds_of "$flows" "$size" "${servers[@]}"
    for who in "${servers[@]}"; do print_row "$who" "$flows" "$size"; done
  done
done
if $has_many; then
  # 10 flows may have been a row of the table, of other moments.
  rm -f "$work"/user.10.64* "$work"/user.30000.64*
  for _ in $(seq "$rounds"); do
    once user 10 64 "$many_rate"
    once user 30000 64 "$many_rate"
  done
  printf '\nuser alone, 64 bytes, %s transactions/s (open loop, latency from when they are due) in turns; 30,000 flows: two clients on CPU 0, the sum of transact/s, the larger p50\n' "$many_rate"
  printf '%6s %12s %11s %14s\n' flows transact/s "p50 us" "server cycles"
  for flows in 10 30000; do
    printf '%6s %12s %11s %14s%s\n' "$flows" "$(column user "$flows" 64 1)" "$(column user "$flows" 64 2)" \
      "$(column user "$flows" 64 3)" "$(bad_runs user "$flows" 64)"
  done
  if [ -e "$work/user.10.64.bad" ] || [ -e "$work/user.30000.64.bad" ]; then
    echo "cycles a transaction, 30,000 flows over 10: -"
  else
    echo "cycles a transaction, 30,000 flows over 10: $(ratio "$(column user 30000 64 3)" "$(column user 10 64 3)")"
  fi
fi
