#!/bin/sh
# Runs test binaries side by side, one line each, and closes with "N passed, N failed".
# usage: scripts/run_tests.sh TEST...
# TEST: a test binary (in a folder arm64 it runs under qemu), arm64/loops (scripts/arm_loops.py), a .ptx file to lint or
# a .ptxas file of resources, or a program of the rehearsal; its log is kept beside it as TEST.log. With
# rehearsal/kernels.ptx all kernels must have been launched by the rehearsal's tests.
set -u
command -v timeout >/dev/null || timeout() { shift && "$@"; } # macOS has none
export OMP_WAIT_POLICY=passive # two processes share the cores: waiting threads must not spin
if [ "${1:-}" = --one ]; then
  start=$(date +%s)
  under="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
  case $2 in
    *.ptx) scripts/ptx_lint.sh "$2" && scripts/plant_ptx_faults.py --check ;;
    *.ptxas) scripts/kernel_resources.sh "$2" ;;
    */rehearsal/train) scripts/gpu_check.py --golden "$2" 2 ;;
    */arm64/loops) scripts/arm_loops.py "${2%/*}/release" "${2%/*/*}/avx2" ;;
    */arm64/release/train) scripts/exchange.sh ./train "$under $2" ;;
    # (The golden runs in full would take hours.)
    */arm64/release/test_golden) GATED_RUN_UNDER=$under timeout 1200 $under "$2" "[short]" ;;
    */arm64/*) GATED_RUN_UNDER=$under timeout 3600 $under "$2" ;;
    */kernels.launched) scripts/gpu_check.py --launched "${2%/*}" ;;
    */rehearsal/*)
      rm -f "$2.launched"
      PTX_LAUNCHED=$2.launched GATED_GUARD=off GATED_NEEDS_GPU=1 timeout 1200 "$2" "[bitwise]"
      ;;
    */asan/test_ranks) timeout 1200 "$2" "~[mpirun]" ;; # (those start ./train)
    *) timeout 1200 "$2" ;;
  esac >"$2.log" 2>&1
  code=$?
  seconds=$(($(date +%s) - start))
  if [ $code -eq 0 ]; then
    printf 'ok    %-40s %4d s  %s\n' "$2" $seconds "$(grep -oE '[0-9]+ assertions' "$2.log" | tail -1)"
  else
    printf 'FAIL  %-40s %4d s  exit %d, see %s.log\n' "$2" $seconds $code "$2"
    tail -40 "$2.log"
  fi
  exit 0
fi
[ $# -gt 0 ] || { sed -n 's/^# usage/usage/p' "$0" >&2 && exit 2; }
results=$(mktemp)
trap 'rm -f "$results"' EXIT
printf '%s\n' "$@" | xargs -P "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)" -n 1 "$0" --one | tee "$results"
for test in "$@"; do
  case $test in */rehearsal/kernels.ptx)
    "$0" --one "${test%.ptx}.launched" | tee -a "$results"
    set -- "$@" launched ;;
  esac
done
passed=$(grep -c '^ok ' "$results")
failed=$(($# - passed))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
