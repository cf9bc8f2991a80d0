#!/bin/sh
# What the compiled kernels take of a GPU, from what ptxas says of each: registers, static shared memory, spills. Fails
# on what scripts/kernel_resources.txt does not allow. Needs nvcc, not a GPU.
#
# A kernel may spill nothing, declare no shared memory and have 64 registers, with which half of a GPU's threads can be
# there at once. What takes more stands in the table, a line for each GPU that it is compiled for:
#   registers  at most. ptxas never gives more than __launch_bounds__ leaves, so these are rounded up to where fewer
#              warps fit, and a register more or less is no news
#   static     bytes of shared memory, exactly
#   spills     bytes stored and loaded, at most
# Where ptxas says that it makes products of wgmma wait for each other, that is a fault, too.
# Registers and spills are ptxas's own decisions: they are compared where nvcc's release and the PTX's target are those
# of the table.
# usage: scripts/kernel_resources.sh [--update] FILE.ptxas
#   FILE.ptxas  has what nvcc --version says, the .target of the PTX, what ptxas -v says
set -u
table=${KERNEL_RESOURCES:-$(dirname "$0")/kernel_resources.txt}
update=0
[ "${1:-}" = --update ] && update=1 && shift
[ $# -eq 1 ] || { echo "kernel_resources: expected one FILE.ptxas, found $# arguments" >&2; exit 2; }
compiler="nvcc $(sed -n 's/.*release \([0-9.]*\),.*/\1/p' "$1" | head -1), PTX of $(sed -n 's/^\.target \([a-z0-9_]*\).*/\1/p' "$1" | head -1)"

# One line a kernel and GPU: kernel, GPU, registers, static, stores, loads.
taken=$(awk '
  /Compiling entry function/ { gsub(/\047/, ""); kernel = $(NF - 2); gpu = $NF }
  /bytes stack frame/        { stores = $5; loads = $9 }
  /: Used [0-9]+ registers/  { shared = 0
                               for (i = 2; i <= NF; i++) if ($i ~ /^smem/) shared = $(i - 2)
                               print kernel, gpu, $5, shared, stores, loads }' "$1" |
  c++filt -p | sed -E 's/gated_nvcc:://g; :a;s/> >/>>/;ta; s/ const>/_const>/g; s/\(Layout\)0/nt/; s/\(Layout\)1/nn/; s/\(Layout\)2/tn/; s/, /,/g' |
  LC_ALL=C sort -u)
[ -n "$taken" ] || { echo "FAIL  kernel_resources $1: no kernel in it: the wrong file, or compiled without ptxas -v?"; exit 1; }

# The registers with which as many warps fit as with `r`: a warp's are counted in 256, and there are 65536.
steps='function step(r,   warps) {
  warps = int(65536 / (32 * 8 * int((r + 7) / 8)))
  if (warps > 64) warps = 64
  r = 8 * int(65536 / (256 * warps))
  return r > 255 ? 255 : r
}'

if [ $update -eq 1 ]; then
  {
    echo "# $compiler"
    echo "# kernel gpu registers static stores loads    made by scripts/kernel_resources.sh --update"
    echo "$taken" | awk "$steps"' $3 > 64 || $4 + $5 + $6 > 0 { $3 = step($3); print }'
  } >"$table"
  echo "kernel_resources: $(grep -vc '^#' "$table") lines in $table"
  exit 0
fi

if grep "wgmma.* serialized" "$1"; then
  echo "FAIL  kernel_resources $1: products of wgmma wait for each other"
  exit 1
fi
echo "$taken" | awk -v compiler="$compiler" '
  function fault(text) { print "FAIL  " $1 " for " $2 ": " text; faults++ }
  NR == FNR && /^# nvcc/ { same = substr($0, 3) == compiler; theirs = substr($0, 3) }
  NR == FNR && /^#/      { next }
  NR == FNR              { registers[$1, $2] = $3; shared[$1] = $4; stores[$1, $2] = $5; loads[$1, $2] = $6; gpus[$2]; next }
  {
    if ($4 != shared[$1] + 0) fault($4 " bytes of static shared memory, expected " shared[$1] + 0)
    if (!same || !($2 in gpus)) { unknown++; next }
    most = ($1, $2) in registers ? registers[$1, $2] : 64
    if ($3 > most) fault($3 " registers, expected at most " most)
    if ($5 > stores[$1, $2] + 0 || $6 > loads[$1, $2] + 0)
      fault("spills " $5 " bytes and loads " $6 " of them again, expected at most " stores[$1, $2] + 0 " and " loads[$1, $2] + 0)
  }
  END {
    if (unknown) print "kernel_resources: registers and spills of " unknown " not compared: the table is of " theirs ", this is " compiler
    if (faults) print "Where it must be so: scripts/kernel_resources.sh --update build/cuda/kernels.ptxas, and commit the table"
    else print "ok    kernel_resources: " FNR " kernels"
    exit faults > 0
  }' "$table" -
