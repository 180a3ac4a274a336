# Part of tests/peers/run: macswap on a veth by AF_XDP in copy mode, which sheafio, dpdk-testpmd and l2fwd/l2fwd.c do in
# turns while a generator saturates it from the other CPU; a table of the medians over all one-second samples.
#
#   generator (CPU 0) --> vg ===== vd --> forwarder (CPU 1) --> vd ===== vg --> dropped
#
# ns/packet is the CPU time of the forwarder, which other programs on a busy machine disturb less than packets/s. A host
# that has put both CPUs on one core makes other figures than one that has them apart, and changes its mind every some
# seconds; handover.rs tells which it is. Runs in between of which it changed are left out.
#
# With `profile` instead: where the time of three of them goes (perf, cpu-clock), and how often they call the kernel.

# shellcheck disable=SC2046 # The flags are words.
gcc -O3 -Wall -Wextra -march=native $(pkg-config --cflags libxdp libbpf) -o "$work/l2fwd" tests/peers/l2fwd/l2fwd.c \
  $(pkg-config --libs libxdp libbpf)

for netns in "$a" "$b"; do
  ip netns add "$netns"
  ip netns exec "$netns" sh -c 'echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6'
done
ip link add vg netns "$a" address 02:00:00:00:00:01 numrxqueues 1 numtxqueues 1 type veth \
  peer name vd netns "$b" address 02:00:00:00:00:02 numrxqueues 1 numtxqueues 1
ip -n "$a" link set vg arp off up
ip -n "$b" link set vd arp off promisc on up

# Each row: program, options, command; testpmd_of BURST BUSY_POLLING, sheafio_of BURST [KEYS]. All rings have 2,048 slots but where it is said.
testpmd_of() {
  echo "dpdk-testpmd --lcores 0@1,1@1 --main-lcore 0 --no-pci --in-memory --no-telemetry -m 256" \
    "--vdev=net_af_xdp0,iface=vd,start_queue=0,queue_count=1,busy_budget=$2 -- --auto-start --nb-cores=1" \
    "--forward-mode=macswap --burst=$1 --rxd=2048 --txd=2048 --stats-period 1000"
}
sheafio_of() { echo "$sheafio fwd -p vd${2:-} --mode macswap --cores 1 --json --burst $1"; }
rows=(
  "testpmd|burst 32|$(testpmd_of 32 0)"
  "testpmd|burst 32, busy polling|$(testpmd_of 32 64)"
  "l2fwd|batch 64|$work/l2fwd vd 64"
  "l2fwd|batch 64, TX budget 2048|$work/l2fwd vd 64 2048"
)
for burst in 16 32 64 128 256; do rows+=("sheafio|burst $burst|$(sheafio_of "$burst")"); done
rows+=(
  "sheafio|burst 32, no TX budget|$built/no_budget $(sheafio_of 32)"
  "sheafio|burst 32, busy polling|$(sheafio_of 32 ,busy_poll=64)"
  "sheafio|burst 32, rings of 8192|$(sheafio_of 32 ,ring=8192)"
)

# start PROGRAM COMMAND...: sets `pid`, and returns once packets would reach it.
start() {
  local program=$1
  shift
  ip netns exec "$b" taskset -c 1 setpriv --pdeathsig KILL "$@" </dev/null >"$work/out" 2>&1 &
  pid=$!
  running=("$pid")
  for _ in $(seq 600); do
    sleep 0.1
    kill -0 "$pid" 2>/dev/null || break
    if ip -n "$b" link show vd 2>/dev/null | grep -q 'prog/xdp'; then
      sleep 1
      ip netns exec "$a" taskset -c 0 setpriv --pdeathsig KILL "$generator" vg $((seconds + 2)) >/dev/null &
      running+=($!)
      sleep 1
      return
    fi
  done
  echo "tests/peers/run: $program has not started:" >&2
  tail -n 5 "$work/out" >&2
  return 1
}
finish() {
  wait "${running[1]}"
  kill -TERM "$pid"
  wait "$pid" || true
  running=()
}
# Time in s, packets sent and received by the forwarder's end, CPU time of its threads in ns.
look() {
  # shellcheck disable=SC2046 # The counts are words.
  echo "$(date +%s.%N)" $(ip netns exec "$b" cat /sys/class/net/vd/statistics/tx_packets /sys/class/net/vd/statistics/rx_packets) \
    "$(cat /proc/"$pid"/task/*/schedstat | awk '{ ns += $1 } END { printf "%.0f", ns }')"
}
handover() { timeout 10 "$built/handover" || echo 0; }

if [ "$what" = profile ]; then
  . tests/peers/profile.sh
  return
fi

# A line a sample: row, the host's state before and after the run in ns, million packets/s sent and generated, ns/packet.
samples=$work/samples
: >"$samples"
for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  for row in "${!rows[@]}"; do
    IFS='|' read -r program options command <<<"${rows[row]}"
    [[ "$program $options" =~ $pattern ]] || continue
    before=$(handover)
    # shellcheck disable=SC2086 # The command is words.
    start "$program" $command
    last=$(look)
    : >"$work/run"
    for _ in $(seq "$seconds"); do
      sleep 1
      now=$(look)
      echo "$last $now" | awk '{ t = ($5 - $1) * 1e6; sent = $6 - $2
        if (sent > 0) printf "%.3f %.3f %.1f\n", sent / t, ($7 - $3) / t, ($8 - $4) / sent }' >>"$work/run"
      last=$now
    done
    finish
    awk -v head="$row $before $(handover)" '{ print head, $0 }' "$work/run" >>"$samples"
  done
done

range=$(awk '{ print $2; print $3 }' "$samples" | sort -g | awk '$1 > 0 { if (!low) low = $1; high = $1 } END { print low + 0, high + 0 }')
# Two states if the extremes are far from each other; their geometric mean parts them.
middle=$(awk '{ print ($2 > 2 * $1 ? sqrt($1 * $2) : 0) }' <<<"$range")
# cell ROW COLUMN: the median over the row's samples in the state at hand; 0 without any.
cell() { awk -v row="$1" -v column="$2" '$1 == row { print $column }' "$work/state" | median; }
print_state() {
  [ -s "$work/state" ] || return 0
  local spread reference_testpmd reference_l2fwd row program options
  spread=$(awk '{ print $2; print $3 }' "$work/state" | sort -g | sed -n '1p;$p' | paste -sd' ' | sed 's/ / to /')
  printf '\n%s: a cache line goes from CPU to CPU and back in %s ns\n' "$1" "$spread"
  reference_testpmd=$(cell 0 4) reference_l2fwd=$(cell 2 4)
  printf '%-8s %-28s %10s %10s %11s %9s %8s %8s\n' program options Mpackets/s ns/packet "of testpmd" "of l2fwd" offered samples
  for row in "${!rows[@]}"; do
    IFS='|' read -r program options _ <<<"${rows[row]}"
    awk -v row="$row" '$1 == row { found = 1 } END { exit !found }' "$work/state" || continue
    printf '%-8s %-28s %10s %10s %11s %9s %8s %8s\n' "$program" "$options" "$(cell "$row" 4)" "$(cell "$row" 6)" \
      "$(ratio_or_none "$(cell "$row" 4)" "$reference_testpmd")" "$(ratio_or_none "$(cell "$row" 4)" "$reference_l2fwd")" \
      "$(cell "$row" 5)" "$(awk -v row="$row" '$1 == row' "$work/state" | wc -l)"
  done
}
ratio_or_none() { if [ "$2" = 0 ]; then echo -; else ratio "$1" "$2"; fi; }

if [ "$middle" = 0 ]; then
  cp "$samples" "$work/state"
  print_state "one state of the host"
else
  awk -v middle="$middle" '$2 > 0 && $3 > 0 && $2 < middle && $3 < middle' "$samples" >"$work/state"
  print_state "CPUs on one core"
  awk -v middle="$middle" '$2 > middle && $3 > middle' "$samples" >"$work/state"
  print_state "CPUs apart"
fi
