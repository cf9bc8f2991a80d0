#!/bin/sh
# Everything that only a GPU can show, in one command: `make gpu-check` builds what this runs. Its stages:
#   bitwise      every kernel against its reference, bit for bit, on the GPU (the same tests as on the emulator); first the
#                tensor core's instruction against the CPU's model of it, on ten million random outputs
#   fingerprint  a whole run in fp32 and in bf16: the weights' fingerprint on the GPU must be the CPU's
#   memcheck, racecheck, initcheck, synccheck
#                compute-sanitizer over the kernel tests; for initcheck fresh memory is left as it is (GATED_FILL=off)
#   bench        the benchmark, beside cuBLAS and the measured copy bandwidth
# RESULT.json is written anew after every check, and the next run goes on behind the last: with the checks that have not
# been run on this build and GPU, or, where all have, with those that failed.
# usage: [STAGES='bitwise memcheck'] [MINUTES=8] [CHECK_SECONDS=300] scripts/gpu_check.sh RESULT.json BENCH TEST...
#   STAGES         these alone
#   MINUTES        no check begins later
#   CHECK_SECONDS  a check that takes longer has failed
# Exits with 0 when all checks have passed, 1 when one failed, 2 when some are left.
set -uf
if [ "${1:-}" = --fingerprint ]; then  # the weights of one run on both devices: the flags follow
  shift
  print_of() { ./train --device="$1" $flags | sed -n 's/^fingerprint of the weights: //p'; }
  flags=$*
  cpu=$(print_of cpu)
  cuda=$(print_of cuda)
  echo "cpu $cpu, cuda $cuda"
  [ -n "$cpu" ] && [ "$cpu" = "$cuda" ]
  exit
fi
result=$1 bench=$2
shift 2
all_stages="bitwise fingerprint memcheck racecheck initcheck synccheck bench"
stages=${STAGES:-$all_stages} minutes=${MINUTES:-0} check_seconds=${CHECK_SECONDS:-300}
for stage in $stages; do
  case " $all_stages " in
    *" $stage "*) ;;
    *) echo "gpu-check: no stage is called '$stage'; expected some of: $all_stages" >&2; exit 1 ;;
  esac
done
begin=$(date +%s)
here=$(dirname "$0")
logs=$(dirname "$bench")/gpu-check.logs
if ! device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1) || [ -z "$device" ]; then
  echo "gpu-check: no GPU answers here (nvidia-smi found none); the emulator's tests are in make test" >&2
  exit 1
fi
nvcc=$("$here/find_cuda.sh" nvcc)
sanitizer=$("$here/find_cuda.sh" compute-sanitizer)
# What the checks are of: other programs or another GPU, and all begin anew.
build=$({ echo "$device"; cat "$bench" "$@" ./train; } | cksum | cut -d' ' -f1)

# ---- what is known, a line for each check
known= bench_rows=null
if grep -qs "\"build\": \"$build\"" "$result"; then
  known=$(sed -n 's/^    \({"check": .*}\),\{0,1\}$/\1/p' "$result")
  bench_rows=$(sed -n '/^  "bench": /,$p' "$result" | sed '1s/^  "bench": //; $d')
elif [ -s "$result" ]; then
  echo "gpu-check: $result is of another build or GPU: all checks begin anew"
fi
line_of() { printf '%s\n' "$known" | grep -F "{\"check\": \"$1\","; }

write_result() {
  {
    cat <<END
{
  "device": "$(echo "$device" | cut -d, -f1)",
  "driver": "$(echo "$device" | cut -d, -f2 | tr -d ' ')",
  "nvcc": "$([ -n "$nvcc" ] && "$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')",
  "commit": "$(git rev-parse --short HEAD 2>/dev/null)",
  "build": "$build",
  "command": "make gpu-check",
  "checks": [
END
    printf '%s\n' "$known" | sed '/^$/d; s/^/    /; $!s/$/,/'
    echo '  ],'
    printf '  "bench": %s\n}\n' "$bench_rows"
  } >"$result.new"
  mv "$result.new" "$result"
}

# ---- the checks: "stage|name|environment|command"
golden="--data=bigram-backcopy --steps=20 --lr=3e-3 --warmup=20 --norm=gated --attn=g1 --sample-tokens=0"
mma=hopper  # the arithmetic of this GPU's tensor cores
case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1) in 8.*) mma=ampere ;; esac
# first NAME FILE...: the files, those called NAME before the others
first() {
  name=$1
  shift
  for file in "$@"; do [ "$(basename "$file")" = "$name" ] && echo "$file"; done
  for file in "$@"; do [ "$(basename "$file")" = "$name" ] || echo "$file"; done
}
list_checks() {
  for stage in $stages; do
    case $stage in
      bitwise) for test in $(first test_mma "$@"); do echo "$stage|$stage $(basename "$test")||$test"; done ;;
      fingerprint)
        echo "$stage|$stage of a run, cpu and cuda||$0 --fingerprint $golden"
        echo "$stage|$stage of a run in bf16, cpu and cuda||$0 --fingerprint $golden --precision=bf16 --mma=$mma"
        ;;
      bench) echo "$stage|$stage||$bench $logs/bench.json" ;;
      *)
        fill=
        [ $stage = initcheck ] && fill=GATED_FILL=off
        for test in "$@"; do
          echo "$stage|$stage $(basename "$test")|$fill|${sanitizer:-compute-sanitizer} --tool $stage --error-exitcode 1 $test [bitwise]"
        done
        ;;
    esac
  done
}

# run STAGE NAME ENVIRONMENT COMMAND
run() {
  log="$logs/$(echo "$2" | tr ' ,' '__').log"
  start=$(date +%s)
  # (the words of a command hold no spaces)
  env $3 timeout "$check_seconds" $4 >"$log" 2>&1
  code=$?
  seconds=$(($(date +%s) - start))
  case $code in
    0) outcome=ok ;;
    124) outcome="FAIL: longer than $check_seconds s" ;;
    *) outcome="FAIL: exit $code" ;;
  esac
  printf '%-5.5s %-48s %4d s\n' "$outcome" "$2" $seconds
  [ $code -eq 0 ] || { tail -20 "$log"; echo "      $outcome; its log: $log"; }
  if [ "$1" = bench ] && [ $code -eq 0 ]; then bench_rows=$(cat "$logs/bench.json"); fi
  known=$(printf '%s\n' "$known" | grep -vF "{\"check\": \"$2\","
    echo "{\"check\": \"$2\", \"command\": \"$3${3:+ }$4\", \"outcome\": \"$outcome\", \"seconds\": $seconds}")
  write_result
}

mkdir -p "$logs"
if [ -z "$sanitizer" ]; then
  echo "gpu-check: no compute-sanitizer in CUDA_HOME (${CUDA_HOME:-not set}), on the path or in /usr/local/cuda*: its checks will fail" >&2
fi
checks=$(list_checks "$@")
todo=$(echo "$checks" | while IFS='|' read -r stage name fill command; do
  [ -n "$(line_of "$name")" ] || echo "$stage|$name|$fill|$command"
done)
if [ -z "$todo" ]; then
  todo=$(echo "$checks" | while IFS='|' read -r stage name fill command; do
    line_of "$name" | grep -qF '"outcome": "ok"' || echo "$stage|$name|$fill|$command"
  done)
fi
write_result
while IFS='|' read -r stage name fill command; do
  [ -n "$stage" ] || continue
  if [ "$minutes" -gt 0 ] && [ $(($(date +%s) - begin)) -ge $((60 * minutes)) ]; then break; fi
  run "$stage" "$name" "$fill" "$command" </dev/null
done <<END
$todo
END

passed=$(printf '%s\n' "$known" | grep -cF '"outcome": "ok"')
failed=$(printf '%s\n' "$known" | grep -cF '"outcome": "FAIL')
left=$(echo "$checks" | while IFS='|' read -r stage name fill command; do
  [ -n "$(line_of "$name")" ] || echo "$name"
done | grep -c .)
echo "gpu-check: $passed passed, $failed failed, $left left; results in $result"
[ "$left" -eq 0 ] || { echo "gpu-check: the same command goes on with what is left"; exit 2; }
[ "$failed" -eq 0 ]
