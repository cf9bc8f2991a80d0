#!/bin/sh
# Refuses PTX whose arithmetic IEEE 754 does not pin down: approximations, flushed denormals, add/sub/mul without an
# explicit rounding, which ptxas may contract into fused multiply-adds, and min/max of floats but for max.f32, which is
# max_number() of core/math.cuh. (It gives the number where one operand is NaN, and +0 for the larger of +0 and -0. With
# +0 and with -inf it is x > 0 ? x : 0 for every x, and nvcc makes it of that.)
# Of bf16 it allows roundings to nearest and the two instructions of tensor cores that core/mma.h models: mma.sync, and
# wgmma with sums of fp32 and no sign changed, alone or added to (its predicate). All other arithmetic is in fp32.
# Copies move bits, but for those that add (cp.reduce.async.bulk), and a tensor's box is 0 or NaN outside of it, as its
# map says (core/tma.cuh): of them it allows boxes of two dimensions that land in shared memory.
# What wgmma adds to, and a factor that it has in registers, must stay as they are from wgmma.fence to the wait for their
# group: nothing else writes to such a register there. (A compiler may move arithmetic past the fence, which says of no
# register that it is read. The sums that are under way may be copied, which ptxas makes nothing of.)
# Needs nvcc, not a GPU.
# usage: scripts/ptx_lint.sh FILE.ptx...
set -u
[ $# -gt 0 ] || { echo "ptx_lint: no PTX file given" >&2; exit 2; }
bad='\.approx|\.ftz|\.full|(add|sub|mul|div|sqrt|fma|mad)\.f(32|64)|mad\.f|(add|sub|mul|fma)\.r[zmp]\.|(ex2|lg2|sin|cos|tanh|rsqrt)\.|(min|max)\.([a-zA-Z]+\.)*(f|bf)(16|32|64)'
bad="$bad|(add|sub|mul|fma|neg|abs|tanh|ex2)\.([a-z]+\.)*b?f16|cvt\.(rz|rm|rp|rna|rs)\.|cvt\.[a-z.0-9]*(e[2-5]m[1-3]|tf32)|w?g?mma\.|tcgen05\.|cp\.(reduce\.)?async\.bulk"
allowed='[^.]max\.f32[[:space:]]|mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32[^.]'
allowed="$allowed|wgmma\.mma_async\.sync\.aligned\.m64n(32|64|128|192|256)k16\.f32\.bf16\.bf16 \{[^}]*\}, (%rd[0-9]+|\{[^}]*\}), %rd[0-9]+, %[a-z_0-9]+, 1, 1(, [01])?, [01];"
allowed="$allowed|cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.mbarrier::complete_tx::bytes(\.multicast::cluster)? "
allowed="$allowed|wgmma\.(fence|commit_group|wait_group)\.sync\.aligned"
atomic='(red|atom)\.[a-z.]*f(32|64)'
in_flight='
  function registers(list, to,   n, i, all) {
    n = split(list, all, /[^%a-z0-9]+/)
    for (i = 1; i <= n; i++) if (all[i] ~ /^%/) to[all[i]] = 1
  }
  /^[.]|wgmma[.]wait_group[^;]* 0;/ { watched = 0; delete busy; next }
  /wgmma[.]wait_group/ { for (r in busy) if (busy[r] < group - $NF) delete busy[r]; next }
  /wgmma[.]commit_group/ { group++; next }
  /wgmma[.]fence/ { watched = 1; delete written; next }
  !watched || !/^[ \t]*(@!?%p[0-9]+ )?[a-z]/ { next }
  /wgmma[.]mma_async/ {
    delete own
    sums = substr($0, index($0, "{"))
    registers(substr(sums, 1, index(sums, "}")), own)
    factor = substr(sums, index(sums, "}") + 1)
    if (factor ~ /^, [{]/) registers(substr(factor, 1, index(factor, "}")), own)
    for (r in own) {
      if (r in written) { print NR ": " r " is written after the fence: " substr($0, 1, 80); bad = 1 }
      busy[r] = group
    }
    next
  }
  {
    sub(/^[ \t]*(@!?%p[0-9]+ )?/, "")
    operands = substr($0, index($0, $2))
    if (operands !~ /^[%{]/ || /^(bra|call|st)/) next
    delete to
    registers(operands ~ /^[{]/ ? substr(operands, 1, index(operands, "}")) : $2, to)
    copied = /^mov/ && $3 ~ /^%/ && substr($3, 1, length($3) - 1) in busy
    for (r in to) {
      if (copied) busy[r] = busy[substr($3, 1, length($3) - 1)]
      else written[r] = 1
      if (!copied && r in busy) { print NR ": " r " is written before the wait: " $0; bad = 1 }
    }
  }
  END { exit bad }'
failed=0
for file in "$@"; do
  if [ ! -r "$file" ]; then
    echo "FAIL  ptx_lint $file: cannot be read"
    failed=1
    continue
  fi
  operations=$(grep -cE '(add|sub|mul|div|sqrt|fma)\.rn\.f32' "$file")
  if [ "$operations" -eq 0 ]; then
    echo "FAIL  ptx_lint $file: no floating-point operation in it: the wrong file?"
    failed=1
  elif grep -nE "^[[:space:]]*(@!?%p[0-9]+ )?([a-z.0-9]*($bad)|$atomic)" "$file" | grep -vE "$allowed" | head -20 | grep .; then
    echo "FAIL  ptx_lint $file: the CPU does not give the bits of the instructions above"
    failed=1
  elif ! awk "$in_flight" "$file"; then
    echo "FAIL  ptx_lint $file: registers that wgmma works on are written to"
    failed=1
  else
    echo "ok    ptx_lint $file: $operations rounded operations, $(grep -cE 'mma\.(sync|mma_async)' "$file") of tensor cores"
  fi
done
exit $failed
