#!/bin/sh
# Installs the Debian packages that building and testing need, if any is missing. Run as often as you like: where all
# are there it does nothing. CUDA is not installed: nvcc is used where it is found.
# usage: scripts/setup.sh [--tests] [--bench] [--plots] [--book] [--ranks] [--into=DIR [--from=PACKAGES]]
#   --ranks            also MPI, with which several processes train one model (docs/ranks.md)
#   --tests            also what some tests need: --plots, --book, --ranks, and on x86-64 a compiler, qemu and libraries
#                      for ARM64
#   --bench, --plots   also what `make bench` (OpenBLAS) or the plots and their tests (matplotlib) need
#   --book             also what `make book` and its test need (Pygments, Python-Markdown)
#   --into=DIR         installs nothing and needs no root: the libraries are downloaded and unpacked into DIR. With that
#                      folder `make DEPS=DIR` builds on any machine of this kind, without network. A compiler and make
#                      must be there
#   --from=PACKAGES    of --into: nothing is downloaded. PACKAGES is the folder DIR/packages that --into has left
#                      elsewhere, a tenth of what is unpacked from it
set -eu
into= from= arm=
#        compiler, make   the emulator's fibers   tests    flags         JSON, safetensors   checksums, fingerprints
packages="g++ make        libboost-context-dev    catch2   libcli11-dev  nlohmann-json3-dev  libxxhash-dev"
#                    tokenizers: regular expressions, normal forms of Unicode
packages="$packages  libpcre2-dev                     libutf8proc-dev"
mpi="openmpi-bin libopenmpi-dev"
for option in "$@"; do
  case $option in
    --tests)
      packages="$packages python3-matplotlib python3-pygments python3-markdown $mpi"
      [ "$(uname -m)" != x86_64 ] || arm=$(dirname "$0")/../build/arm64-libs
      ;;
    --bench) packages="$packages libopenblas-dev" ;;
    --ranks) packages="$packages $mpi" ;;
    --plots) packages="$packages python3-matplotlib" ;;
    --book) packages="$packages python3-pygments python3-markdown" ;;
    --into=?*) into=${option#--into=} ;;
    --from=?*) from=${option#--from=} ;;
    --help) exec sed -n '2,/^set/s/^# \{0,1\}//p' "$0" ;;
    *) echo "setup: unknown option $option; expected --tests, --bench, --plots, --book, --ranks, --into=DIR or --from=PACKAGES" >&2; exit 1 ;;
  esac
done
if [ -n "$from" ]; then
  [ -n "$into" ] || { echo "setup: --from says what --into=DIR unpacks: that is missing" >&2; exit 1; }
  ls "$from"/*.deb >/dev/null 2>&1 || { echo "setup: --from=$from: no packages there" >&2; exit 1; }
fi
if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system: install the equivalents of: $packages (on macOS: brew install" \
    "boost catch2 cli11 nlohmann-json xxhash pcre2 utf8proc libomp make, and build with gmake)" >&2
  exit 1
fi
needs="depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances"
if [ -n "$into" ]; then
  case $packages in
    *python3-*) echo "setup: --into is for libraries; what Python needs comes with: python3 -m pip install --user matplotlib pygments markdown" >&2; exit 1 ;;
    *openmpi*) echo "setup: --into brings no MPI: where nothing may be installed, take the machine's own (module avail)" >&2; exit 1 ;;
  esac
  if [ -z "$from" ]; then
    # What the packages need of each other: headers and libraries, and none that a compiler brings along.
    wanted=$(apt-cache $needs ${packages#g++ make} | grep -E '^(libboost|catch2|libcli11|nlohmann|libxxhash|libpcre2|libutf8proc|libopenblas|libgfortran|libquadmath)' | sort -u)
    [ -n "$wanted" ] || { echo "setup: apt-cache knows none of: ${packages#g++ make}; have the lists of packages updated" >&2; exit 1; }
    from=$into/packages
    rm -rf "$from"
    mkdir -p "$from"
    (cd "$from" && apt-get download -q $wanted)
  fi
  mkdir -p "$into"
  for p in "$from"/*.deb; do dpkg-deb -x "$p" "$into"; done
  echo "setup: $(ls "$from"/*.deb | wc -l) packages are unpacked; build with: make DEPS=$(cd "$into" && pwd)"
  exit 0
fi
[ -z "$arm" ] || packages="$packages g++-aarch64-linux-gnu qemu-user-static"
missing=
for p in $packages; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
if [ -n "$missing" ]; then
  echo "setup: installing$missing"
  as_root=
  [ "$(id -u)" -eq 0 ] || as_root=sudo
  $as_root apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing
fi
# The libraries for ARM64 are unpacked and not installed: apt reads its lists of packages into a folder of its own.
unpack_for_arm() {
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/libraries"
  both="-o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o Dir::State::lists=$work/lists -o Dir::Cache=$work/cache"
  apt-get $both update -qq || return
  wanted=$(apt-cache $both $needs libboost-context-dev:arm64 libxxhash-dev:arm64 libpcre2-dev:arm64 libutf8proc-dev:arm64 |
    grep -E '^(libboost-context|libxxhash|libpcre2-(8|dev)|libutf8proc).*:arm64$' | sort -u)
  [ -n "$wanted" ] && (cd "$work" && apt-get $both download -qq $wanted) || return
  for p in "$work"/*.deb; do dpkg-deb -x "$p" "$work/libraries" || return; done
  rm -rf "$arm" && mkdir -p "${arm%/*}" && cp -r "$work/libraries" "$arm" &&
    echo "setup: for ARM64, $(ls "$work"/*.deb | wc -l) packages are unpacked into build/arm64-libs"
}
if [ -n "$arm" ] && [ ! -d "$arm/usr" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  unpack_for_arm || echo "setup: the libraries for ARM64 could not be had: the tests leave ARM64 out" >&2
elif [ -z "$missing" ]; then
  echo "setup: all packages are there"
fi
