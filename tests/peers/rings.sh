# Part of tests/peers/run: the data path over rings in memory, burst 32, beside plain loops (both in
# drivers/benches/rings/) and xsk-rs (xsk-rs/rings.rs), in turns; medians over the rounds in ns a packet. The ratios are
# medians of the ratios within a round. xsk-rs works on the rings of a socket on the loopback of an empty namespace.

bench=$(cargo bench --locked --quiet --package sheafio-drivers --bench rings --no-run --message-format json |
  jq -r 'select(.target.name? == "rings" and .executable) | .executable')
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/xsk-rs
cargo build --release --locked --quiet --manifest-path tests/peers/xsk-rs/Cargo.toml --target-dir "$target" --bin rings
ip netns add "$a"
ip -n "$a" link set lo up

warm_up
for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  {
    taskset -c 1 timeout 60 "$bench" 1
    ip netns exec "$a" taskset -c 1 timeout 60 "$target/release/rings" lo 1
  } >"$work/round"
  # SLOTS slots: NAME NS ...
  awk '/ slots: / { gsub(/[(,)]/, ""); for (i = 3; i < NF; i++) if ($i ~ /^(sheafio|plain|xsk-rs)$/) ns[$1, $i] = $(i + 1) }
    END { for (slots = 512; slots <= 2048; slots *= 4)
      print slots, ns[slots, "sheafio"], ns[slots, "plain"], ns[slots, "xsk-rs"] }' "$work/round" >>"$work/rounds"
done

echo "kernel $(uname -r), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1); ns a packet, medians of $rounds rounds"
row='%-16s %9s %9s %9s %16s %16s\n'
# shellcheck disable=SC2059 # The format is a constant.
printf "$row" "rings of" sheafio plain xsk-rs sheafio/plain sheafio/xsk-rs
for slots in 512 2048; do
  awk -v slots="$slots" '$1 == slots' "$work/rounds" >"$work/case"
  # column EXPRESSION: the median of it over the rounds.
  column() { awk "{ printf \"%.3f\\n\", $1 }" "$work/case" | median; }
  # shellcheck disable=SC2059,SC2016 # The format is a constant; the expressions are awk's.
  printf "$row" "$slots slots" "$(column '$2')" "$(column '$3')" "$(column '$4')" "$(column '$2 / $3')" "$(column '$2 / $4')"
done
