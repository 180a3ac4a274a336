# Part of tests/peers/run: the cases of mempool.rs and mempool.c in turns, one half-second run of each a round, and
# a table of the medians over the rounds. The ratio is sheafio over DPDK: cycles should be below 1, objects/s above.
# From core to core a state of the host can cost three quarters, for seconds; there the last columns tell more: the
# median, lowest and highest ratio of two runs that follow each other.

# -march=native comes last: libdpdk's flags name an older CPU.
# shellcheck disable=SC2046 # The flags are words.
gcc -O3 -Wall -Wextra $(pkg-config --cflags libdpdk) -march=native -o "$work/mempool" tests/peers/mempool.c \
  $(pkg-config --libs libdpdk)

cases=()
for bulk in 1 8 16 32 64; do cases+=("pair $bulk const" "pair $bulk var"); done
cases+=("thread 1" "thread 32" "pipe untouched" "pipe touched" "pipe spread")
cases+=("pipe untouched 512" "pipe touched 512" "pipe spread 512" "pipe touched barn" "pipe touched 512 barn")
# Other ways to share indices in Rust, for scale.
our_cases=("array_queue 1" "array_queue 32" "array_queue pipe" "mutex_vec 1" "mutex_vec 32" "mutex_vec pipe")

# figure PROGRAM CASE: the program prints a number and its unit.
figure() {
  # shellcheck disable=SC2086 # The case is words.
  timeout 20 "$1" $2 >"$work/line" || { echo "tests/peers/run: $1 $2 has failed" >&2; return 1; }
  cut -d' ' -f1 "$work/line"
}

for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  warm_up
  for case in "${cases[@]}"; do
    figure "$built/mempool" "$case" >>"$work/ours.$case"
    # DPDK spreads the objects anyway, and has no barn.
    theirs=${case/spread/touched}
    figure "$work/mempool" "${theirs% barn}" >>"$work/theirs.$case"
  done
  for case in "${our_cases[@]}"; do figure "$built/mempool" "$case" >>"$work/ours.$case"; done
done

row='%-20s %9s %9s %7s %7s  %-13s %s\n'
# shellcheck disable=SC2059 # The format is a constant.
printf "$row" case sheafio DPDK ratio rounds range unit
for case in "${cases[@]}" "${our_cases[@]}"; do
  unit="cycles an element" ours=$(median <"$work/ours.$case") theirs=- quotient=- rounds_median=- range=-
  [[ $case = *pipe* ]] && unit="million objects/s"
  if [ -e "$work/theirs.$case" ]; then
    theirs=$(median <"$work/theirs.$case")
    quotient=$(ratio "$ours" "$theirs")
    paste "$work/ours.$case" "$work/theirs.$case" | awk '{ printf "%.2f\n", $1 / $2 }' | sort -g >"$work/ratios"
    rounds_median=$(median <"$work/ratios") range=$(sed -n '1p;$p' "$work/ratios" | paste -sd' ' | sed 's/ / to /')
  fi
  # shellcheck disable=SC2059
  printf "$row" "$case" "$ours" "$theirs" "$quotient" "$rounds_median" "$range" "$unit"
done
