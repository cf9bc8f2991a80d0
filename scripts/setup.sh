#!/bin/sh
# Installs the Debian packages that building and testing need, if any is missing. Run as often as you like: where all
# are there it does nothing. CUDA is not installed: nvcc is used where it is found.
# usage: scripts/setup.sh [--bench] [--plots] [--into=DIR [--from=PACKAGES]]
#   --bench, --plots   also what `make bench` (OpenBLAS) or the plots and their tests (matplotlib) need
#   --into=DIR         installs nothing and needs no root: the libraries are downloaded and unpacked into DIR. With that
#                      folder `make DEPS=DIR` builds on any machine of this kind, without network. A compiler and make
#                      must be there
#   --from=PACKAGES    of --into: nothing is downloaded. PACKAGES is the folder DIR/packages that --into has left elsewhere, a
#                      tenth of what is unpacked from it
set -eu
into= from=
#        compiler, make   the emulator's fibers   tests    flags         JSON, safetensors header  checksums, fingerprints
packages="g++ make        libboost-context-dev    catch2   libcli11-dev  nlohmann-json3-dev        libxxhash-dev"
#                    tokenizers: regular expressions, normal forms of Unicode
packages="$packages  libpcre2-dev                     libutf8proc-dev"
for option in "$@"; do
  case $option in
    --bench) packages="$packages libopenblas-dev" ;;
    --plots) packages="$packages python3-matplotlib" ;;
    --into=?*) into=${option#--into=} ;;
    --from=?*) from=${option#--from=} ;;
    *) echo "setup: unknown option $option; expected --bench, --plots, --into=DIR or --from=PACKAGES" >&2; exit 1 ;;
  esac
done
if [ -n "$from" ]; then
  [ -n "$into" ] || { echo "setup: --from says what --into=DIR unpacks: that is missing" >&2; exit 1; }
  ls "$from"/*.deb >/dev/null 2>&1 || { echo "setup: --from=$from: no packages there" >&2; exit 1; }
fi
if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system: install the equivalents of: $packages" >&2
  exit 1
fi
if [ -n "$into" ]; then
  case $packages in
    *matplotlib*) echo "setup: --into is for libraries; matplotlib comes with: python3 -m pip install --user matplotlib" >&2; exit 1 ;;
  esac
  if [ -z "$from" ]; then
    # What the packages need of each other: headers and libraries, and none that a compiler brings along.
    wanted=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
      ${packages#g++ make} | grep -E '^(libboost|catch2|libcli11|nlohmann|libxxhash|libpcre2|libutf8proc|libopenblas|libgfortran|libquadmath)' | sort -u)
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
missing=
for p in $packages; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
if [ -z "$missing" ]; then
  echo "setup: all packages are there"
  exit 0
fi
echo "setup: installing$missing"
as_root=
[ "$(id -u)" -eq 0 ] || as_root=sudo
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing
