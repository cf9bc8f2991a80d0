#!/bin/sh
# What a machine with a GPU is handed where nothing can be compiled or installed: the programs of `make gpu-check`,
# stripped, the shared libraries that they ask for beside CUDA's and the C library's, the fixtures that they read, and the
# scripts that run them, in one archive.
#   on this machine    make gpu-build CUDA_ARCH=90 ARCH=x86-64-v3, then this
#   on that one        tar xzf gpu.tar.gz && MINUTES=9 gpu/check OUT     again, until nothing is left
# OUT/gpu_check.json is written after every check, and at the end OUT/gpu_check.logs.tar.gz, what all checks have printed.
# A later call goes on from the first: where another machine runs that, carry it along.
# usage: scripts/gpu_pack.sh ARCHIVE.tar.gz TRAIN PROGRAM... [--cublas TEST...]        BENCH before the tests
#        scripts/gpu_pack.sh --rehearsal ARCHIVE.tar.gz TRAIN TEST...                  the rehearsal's, with its kernels
set -eu
rehearsal=
[ "${1:-}" = --rehearsal ] && rehearsal=$1 && shift
[ $# -ge 3 ] || { sed -n '/^# usage/,/^set/s/^# //p' "$0" >&2 && exit 2; }
archive=$1 train=$2
shift 2
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/gpu" "$folder/gpu/programs" "$folder/gpu/lib"

names= cublas=
for program; do
  [ "$program" = --cublas ] && cublas=--cublas && names="$names --cublas" && continue
  names="$names programs/$(basename "$program")"
  [ -n "$cublas" ] || strip -o "$folder/gpu/programs/$(basename "$program")" "$program"
done
strip -o "$folder/gpu/train" "$train"
for library in "$(dirname "$1")"/*.so; do
  [ ! -e "$library" ] || strip -o "$folder/gpu/programs/$(basename "$library")" "$library"
done
# Of what they are linked with, what is neither CUDA's nor glibc's nor here already. (libstdc++ and libgomp of another
# compiler may be older.)
for program in "$folder/gpu/train" "$folder"/gpu/programs/*; do
  LD_LIBRARY_PATH=$folder/gpu/programs ldd "$program"
done >"$folder/asked_for"
! grep "not found" "$folder/asked_for" >&2 || exit 1
awk '$3 ~ /^\// { print $3 }' "$folder/asked_for" | grep -vE "/lib(c|m|dl|rt|pthread|cuda|cudart|cublas|cublasLt|gated)\.so|^$folder" | sort -u |
  while read -r library; do cp -L "$library" "$folder/gpu/lib/"; done
[ -z "$rehearsal" ] || cp -r "$(dirname "$train")/kernels" "$folder/gpu/programs/"

# (the sources are the text of --data=self)
cp -r scripts README.md train_gpt.cu core dataloader kernels layers training "$folder/gpu/"
mkdir "$folder/gpu/results" "$folder/gpu/tests"
cp -r tests/fixtures "$folder/gpu/tests/"
[ ! -e results/gpu_check.json ] || cp results/gpu_check.json "$folder/gpu/results/"
{
  cat <<'EOF'
#!/bin/sh
# The checks, from where they stopped: gpu/check OUT (scripts/gpu_check.py says of STAGES, MINUTES, JOBS)
set -eu
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
# What this machine has itself may be newer, and its python needs that.
for library in lib/*; do ! ldconfig -p 2>/dev/null | grep -q "$(basename "$library") " || rm "$library"; done
[ -e "$out/gpu_check.json" ] || [ ! -e results/gpu_check.json ] || cp results/gpu_check.json "$out/"
export LD_LIBRARY_PATH="$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PTX_KERNELS="$PWD/programs/kernels"
EOF
  echo "export COMMIT=$(git describe --always --dirty 2>/dev/null)"
  [ -z "$rehearsal" ] || echo 'export GATED_GUARD=off'
  echo "scripts/gpu_check.py $rehearsal \"\$out/gpu_check.json\" ${rehearsal:+./train}$names || code=\$?"
  echo '[ ! -d programs/gpu-check.logs ] || tar czf "$out/gpu_check.logs.tar.gz" -C programs gpu-check.logs'
  echo 'exit ${code:-0}'
} >"$folder/gpu/check"
chmod +x "$folder/gpu/check"
tar czf "$archive" -C "$folder" gpu
echo "$archive: $(($(wc -c <"$archive") >> 20)) MiB, $(du -sm "$folder/gpu" | cut -f1) MiB unpacked, $(ls "$folder/gpu/lib" | wc -l) libraries"
