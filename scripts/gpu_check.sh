#!/bin/sh
# Everything that only a GPU can show, in one command: `make gpu-check` builds what this runs. Its stages, in this order:
#   bitwise      every case that runs kernels, bit for bit against its reference or the CPU, and those of cuBLAS; in this stage
#                as in those of compute-sanitizer, first the tensor cores' instruction against the CPU's model of it, then what
#                is made of it
#   fingerprint  whole runs: the weights' fingerprint on the GPU must be the CPU's. In bf16 by the arithmetic of this GPU
#   bench        the benchmark, beside cuBLAS and the measured copy bandwidth; nothing runs beside it
#   pytorch      where python3 has PyTorch that sees the GPU: a step, products and attention beside it, added to the benchmark
#   memcheck, racecheck, initcheck, synccheck
#                compute-sanitizer over the same cases; for initcheck fresh memory is left as it is (GATED_FILL=off). Where
#                compute-sanitizer is missing or cannot attach to a small test, these stages are `not run`
# RESULT.json is written anew after every check, and the next run goes on behind the last: with the checks that have not
# been run on this build and GPU, or, where all have, with those that failed.
# usage: [STAGES='bitwise memcheck'] [MINUTES=6] [CHECK_SECONDS=200] [JOBS=8] scripts/gpu_check.sh RESULT.json BENCH TEST...
#   STAGES         these alone
#   MINUTES        no check begins later; counted from BEGAN, in seconds since 1970, where make says when it began to build
#   CHECK_SECONDS  a check that takes longer has failed
#   JOBS           so many checks side by side; without it, one for two cores
# Exits with 0 when all checks have passed, 1 when one failed or a stage cannot be run, 2 when some are left.
set -uf

if [ "${1:-}" = --fingerprint ]; then  # the weights of one run on both devices: the flags follow, CUDA_FLAGS has cuda's own
  shift
  flags=$*
  print_of() { ./train --device="$1" $flags $2 | sed -n 's/^fingerprint of the weights: //p'; }
  cpu=$(print_of cpu "")
  cuda=$(print_of cuda "${CUDA_FLAGS:-}")
  echo "cpu $cpu, cuda $cuda"
  [ -n "$cpu" ] && [ "$cpu" = "$cuda" ]
  exit
fi

# ---- what is known: in $logs/known a line of JSON for each check, in $logs/head what stands before them in the result

write_result() {
  {
    cat "$logs/head"
    sed '/^$/d; s/^/    /; $!s/$/,/' "$logs/known"
    echo '  ],'
    printf '  "bench": %s\n}\n' "$(cat "$logs/rows")"
  } >"$result.new"
  mv "$result.new" "$result"
}
line_of() { grep -F "{\"check\": \"$1\"," "$logs/known"; }
# record NAME COMMAND OUTCOME SECONDS
record() {
  {
    grep -vF "{\"check\": \"$1\"," "$logs/known"
    echo "{\"check\": \"$1\", \"command\": \"$2\", \"outcome\": \"$3\", \"seconds\": $4}"
  } >"$logs/known.new"
  mv "$logs/known.new" "$logs/known"
}

if [ "${1:-}" = --one ]; then  # a check: "stage|name|environment|command", of which no word holds a space
  start=$(date +%s)
  [ "$deadline" -eq 0 ] || [ "$start" -lt "$deadline" ] || exit 0
  IFS='|' read -r stage name environment command <<END
$2
END
  log="$logs/$(echo "$name" | tr ' ,' '__').log"
  if [ "$stage" = bench ]; then  # its rows begin anew, and so do PyTorch's beside them
    rm -f "$logs/bench.json"
    grep -vF ' beside PyTorch"' "$logs/known" >"$logs/known.new"
    mv "$logs/known.new" "$logs/known"
  fi
  env $environment timeout -k 10 "$check_seconds" $command >"$log" 2>&1 </dev/null
  code=$?
  seconds=$(($(date +%s) - start))
  case $code in
    0) outcome=ok ;;
    124 | 137) outcome="FAIL: longer than $check_seconds s" ;;
    *) outcome="FAIL: exit $code" ;;
  esac
  if [ $code -eq 0 ] && grep -q 'No tests ran' "$log"; then outcome="FAIL: no case ran"; fi
  exec 9>"$logs/lock"  # one check at a time says and writes what came of it
  flock 9
  printf '%-5.5s %-60s %4d s\n' "$outcome" "$name" $seconds
  [ "$outcome" = ok ] || { tail -20 "$log"; echo "      $outcome; its log: $log"; }
  # (a bench that was stopped leaves what it has measured)
  case $stage in
    bench | pytorch) [ ! -s "$logs/bench.json" ] || cat "$logs/bench.json" >"$logs/rows" ;;
  esac
  record "$name" "$environment${environment:+ }$command" "$outcome" $seconds
  write_result
  exit 0
fi

result=$1 bench=$2
shift 2
all_stages="bitwise fingerprint bench pytorch memcheck racecheck initcheck synccheck"
stages=${STAGES:-$all_stages} minutes=${MINUTES:-0} check_seconds=${CHECK_SECONDS:-200}
jobs=${JOBS:-$((($(nproc) + 1) / 2))}
for stage in $stages; do
  case " $all_stages " in
    *" $stage "*) ;;
    *) echo "gpu-check: no stage is called '$stage'; expected some of: $all_stages" >&2; exit 1 ;;
  esac
done
began=${BEGAN:-$(date +%s)}
deadline=0
if [ "$minutes" -gt 0 ]; then deadline=$((began + 60 * minutes)); fi
here=$(dirname "$0")
logs=$(dirname "$bench")/gpu-check.logs
if ! answer=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>&1) || [ -z "$answer" ]; then
  echo "gpu-check: no GPU answers here: nvidia-smi: ${answer:-says nothing}; the emulator's tests are in make test" >&2
  exit 1
fi
device=$(echo "$answer" | head -1)
capability=${device##*, }
case $capability in
  [1-7].*) echo "gpu-check: $device: expected compute capability 8.0 or higher, whose instructions the kernels have" >&2; exit 1 ;;
esac
nvcc=$("$here/find_cuda.sh" nvcc)
sanitizer=$("$here/find_cuda.sh" compute-sanitizer)
# What the checks are of: other programs or another GPU, and all begin anew.
build=$({ echo "$device"; cat "$bench" "$@" ./train; } | cksum | cut -d' ' -f1)

mkdir -p "$logs"
: >"$logs/known"
echo null >"$logs/rows"
if grep -qs "\"build\": \"$build\"" "$result"; then
  sed -n 's/^    \({"check": .*}\),\{0,1\}$/\1/p' "$result" >"$logs/known"
  sed -n '/^  "bench": /,$p' "$result" | sed '1s/^  "bench": //; $d' >"$logs/rows"
else
  rm -f "$logs/bench.json"
  [ ! -s "$result" ] || echo "gpu-check: $result is of another build or GPU: all checks begin anew"
fi
cat >"$logs/head" <<END
{
  "device": "$(echo "$device" | cut -d, -f1)",
  "driver": "$(echo "$device" | cut -d, -f2 | tr -d ' ')",
  "nvcc": "$([ -n "$nvcc" ] && "$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')",
  "commit": "$(git rev-parse --short HEAD 2>/dev/null)",
  "build": "$build",
  "command": "make gpu-check",
  "checks": [
END

# ---- the checks: "stage|name|environment|command"

golden="--data=bigram-backcopy --steps=20 --lr=3e-3 --warmup=20 --norm=gated --attn=g1 --sample-tokens=0"
mma=hopper  # the arithmetic of this GPU's tensor cores
case $capability in 8.*) mma=ampere ;; esac
# The tensor cores' tests before the others.
ordered() {
  for pattern in '/test_mma$' '_bf16$'; do printf '%s\n' "$@" | grep -e "$pattern"; done
  printf '%s\n' "$@" | grep -v -e '/test_mma$' -e '_bf16$'
}
fingerprint_of() { echo "fingerprint|fingerprint of $1, cpu and cuda||$0 --fingerprint $golden $2"; }
checks_of() {
  stage=$1
  shift
  case $stage in
    bitwise) for test in $(ordered "$@"); do echo "$stage|$stage $(basename "$test")||$test [bitwise],[cublas]"; done ;;
    fingerprint)
      fingerprint_of "a run" ""
      echo "fingerprint|fingerprint of a run as CUDA graphs, cpu and cuda|CUDA_FLAGS=--graph|$0 --fingerprint $golden --dropout=0.1 --micro-batches=2"
      echo "fingerprint|fingerprint of a run in bf16 as CUDA graphs, cpu and cuda|CUDA_FLAGS=--graph|$0 --fingerprint $golden --precision=bf16 --mma=$mma --ffn=gelu --ffn-bias=on"
      fingerprint_of "a run in bf16 as $mma" "--precision=bf16 --mma=$mma"
      fingerprint_of "a hybrid with experts" "--mixer=hybrid --experts=8"
      fingerprint_of "a run with recomputing and dropout" "--recompute=full --dropout=0.1"
      fingerprint_of "linear attention" "--mixer=gated-delta"
      ;;
    bench) echo "$stage|$stage||$bench $logs/bench.json" ;;
    pytorch)
      if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        echo "$stage|a step beside PyTorch||$here/compare_torch.py --device=cuda --rounds=1 --rows=$logs/bench.json"
        echo "$stage|products and attention beside PyTorch||$here/torch_kernels.py $logs/bench.json"
      fi
      ;;
    *)
      fill=
      [ $stage = initcheck ] && fill=GATED_FILL=off
      for test in $(ordered "$@"); do
        echo "$stage|$stage $(basename "$test")|$fill|$sanitizer --tool $stage --error-exitcode 1 $test [bitwise]"
      done
      ;;
  esac
}
# Can compute-sanitizer run the smallest test? Then, or where it finds faults there, it attaches. Else $unusable says why not.
probe() {
  if [ -z "$sanitizer" ]; then
    unusable="no compute-sanitizer in CUDA_HOME (${CUDA_HOME:-not set}), on the path or in /usr/local/cuda*"
    return
  fi
  test=$(printf '%s\n' "$@" | grep '/test_round$' || printf '%s\n' "$@" | head -1)
  if ! timeout -k 10 "$check_seconds" "$sanitizer" --tool memcheck --error-exitcode 1 "$test" "[bitwise]" >"$logs/probe.log" 2>&1 </dev/null &&
    ! grep -q 'ERROR SUMMARY: [1-9]' "$logs/probe.log"; then
    unusable="compute-sanitizer cannot run $(basename "$test"): $(grep -v '^=* *$' "$logs/probe.log" | tail -1 | tr -d '"\\|')"
  fi
}

# Those that were never run, of all stages; or those that did not pass, where there is none.
wanted=$(for stage in $stages; do checks_of "$stage" "$@"; done)
unknown() { ! line_of "$1" >/dev/null; }
not_passed() { ! line_of "$1" | grep -qF '"outcome": "ok"'; }
select_by() {
  echo "$wanted" | while IFS='|' read -r stage name rest; do
    if "$1" "$name"; then echo "$stage|$name|$rest"; fi
  done
}
not_run_stages() { sed -n 's/^{"check": "\([a-z]*\)",.*"outcome": "not run.*/\1/p' "$logs/known"; }
left() {
  without=$(not_run_stages)
  select_by unknown | while IFS='|' read -r stage rest; do
    echo "$without" | grep -qx "$stage" || echo "$rest"
  done
}
if [ -n "$(left)" ]; then todo=$(select_by unknown); else todo=$(select_by not_passed); fi

write_result
export result logs check_seconds deadline
export GATED_NEEDS_GPU=1 OMP_WAIT_POLICY=passive  # beside each other waiting threads must not spin
unusable=
probed=
for stage in $stages; do
  lines=$(echo "$todo" | grep "^$stage|") || continue
  if [ "$deadline" -gt 0 ] && [ "$(date +%s)" -ge "$deadline" ]; then break; fi
  case $stage in
    *check)
      [ -n "$probed" ] || probe "$@"
      if [ -n "$unusable" ]; then
        [ -n "$probed" ] || echo "gpu-check: $unusable: what is left of its stages is not run"
        record "$stage" "${sanitizer:-compute-sanitizer} --tool $stage" "not run: $unusable" 0
        write_result
      else
        grep -vF "{\"check\": \"$stage\"," "$logs/known" >"$logs/known.new"
        mv "$logs/known.new" "$logs/known"
      fi
      probed=yes
      [ -z "$unusable" ] || continue
      ;;
  esac
  case $stage in
    bench | pytorch) at_once=1 ;;  # nothing runs beside what is timed
    *) at_once=$jobs ;;
  esac
  printf '%s\n' "$lines" | xargs -d '\n' -P "$at_once" -n 1 "$0" --one
done

passed=$(grep -cF '"outcome": "ok"' "$logs/known")
failed=$(grep -cF '"outcome": "FAIL' "$logs/known")
not_run=$(for stage in $stages; do not_run_stages | grep -x "$stage"; done | paste -sd ' ' -)
left=$(left | grep -c .)
echo "gpu-check: $passed passed, $failed failed, $left left${not_run:+, not run: $not_run}; results in $result"
[ "$left" -eq 0 ] || { echo "gpu-check: the same command goes on with what is left"; exit 2; }
[ "$failed" -eq 0 ] && [ -z "$not_run" ]
