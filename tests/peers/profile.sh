# Part of tests/peers/run, after veth.sh has made the veth: for each program, two seconds of samples of its CPU time
# under load (perf, cpu-clock: this works in virtual machines without counters too), in shares of what the code is for,
# and how often it calls the kernel. What runs with interrupts off is charged to where they come on again.

# What the symbols are for: a name and a pattern each; the first one that fits counts.
parts=(
  "the program itself|^\[\.\]"
  "AF_XDP|xsk|xp_|pi_memcpy|skb_store_bits"
  "socket buffers|skb_release|alloc_skb|kmalloc|kmem_cache|kfree|slab|sock_alloc|sock_wfree|skb_set_owner|build_skb|skb_put|skb_reason|sk_skb|memset"
  "sending|veth|direct_xmit|xmit_skb|skb_features|network_protocol|dev_forward|scrub|type_trans|tx_timestamp|features_check"
  "softirq and receiving|softirq|local_bh|net_rx|netif_rx|netif_receive|backlog|rps|napi|bpf_prog|defer_free|find_next_bit|find_first_bit"
  "locks and RCU|spin|rcu|mutex"
  "system calls|syscall|sendto|sendmsg|entry_SYSCALL|fdget|sockfd"
  "other|."
)
report=$work/report
# The load must outlast both tools.
seconds=10

for row in 0 2 5; do
  IFS='|' read -r program options command <<<"${rows[row]}"
  state=$(handover)
  # shellcheck disable=SC2086 # The command is words.
  start "$program" $command
  before=$(look)
  perf record --quiet --event cpu-clock --freq 5000 --pid "$pid" --output "$work/perf.data" -- sleep 2 >/dev/null 2>&1
  after=$(look)
  calls=$(perf stat --field-separator ' ' --event raw_syscalls:sys_enter --pid "$pid" -- sleep 1 2>&1 | awk '/sys_enter/ { print $1 }')
  called=$(look)
  finish
  perf report --input "$work/perf.data" --no-children --sort symbol --stdio 2>/dev/null | grep -v '^#' | sed '/^ *$/d' |
    awk '{ share = $1; $1 = ""; sub(/^ /, ""); sub(/ +-.*/, ""); print share + 0, $0 }' >"$report"
  echo "$before $after $called" | awk -v name="$program, $options" -v calls="$calls" -v state="$state $(handover)" '{
    split(state, handover, " ")
    printf "%s: %.0f ns of CPU time a packet, %.4f system calls a packet (a cache line takes %d and %d ns before and after)\n",
      name, ($8 - $4) / ($6 - $2), calls / ($10 - $6), handover[1], handover[2] }'
  printf '%s\n' "${parts[@]}" | awk -F'|' 'NR == FNR { names[++n] = $1; pattern = $2
      for (i = 3; i <= NF; i++) pattern = pattern "|" $i
      patterns[n] = pattern; next }
    { split($0, words, " "); symbol = $0; sub(/^[^ ]+ /, "", symbol)
      for (i = 1; i <= n; i++) if (symbol ~ patterns[i]) { sum[i] += words[1]; break } }
    END { for (i = 1; i <= n; i++) printf "  %5.1f %%  %s\n", sum[i], names[i] }' - "$report"
  echo "  most in: $(head -n 8 "$report" | awk '{ printf "%s%s %.1f %%", (NR > 1 ? ", " : ""), $3, $1 }')"
done
