#!/bin/sh
# Trains small models in which the papers' effects show, and sets them side by side on three pages:
#   report.html  seven models on the synthetic task of arXiv 2410.13835
#   text.html    the same seven on text, this repository's source
#   depth.html   a deep model with and without residual connections, its norms before the sums and after them
# A model trains on one core, beside the others. Goes on where it was stopped.
# usage: scripts/gallery.sh [FOLDER [STEPS]]      into FOLDER [gallery]; STEPS of every model, for a quick look
#        (make gallery builds ./train first)
set -eu
home=$(cd "$(dirname "$0")/.." && pwd)

if [ "${1:-}" = --one ]; then  # "name flags", of which no word holds a space
  set -- $2
  name=$1
  shift
  # (./train resumes the run that was stopped, and is done at once with one that has ended)
  "$home"/train --out="$name" --resume --keep=1 --save-every=500 --sample-tokens=0 --threads=1 --batch=8 --context=64 \
    --qk-norm=off --seed=1 "$@" >"$name".txt 2>&1 || { cat "$name".txt >&2; exit 255; }
  echo "trained  $name: $*"
  exit
fi
folder=${1:-gallery}
steps=${2:-}
case $folder in -*) sed -n 's/^# usage/usage/p' "$0" >&2 && exit 2 ;; esac
mkdir -p "$folder"
cd "$folder"

# Those that take longest first.
seven="gated-norm-g1 --norm=gated --attn=g1
dyt --norm=dyt --embedding-scale=on
plain
g1 --attn=g1
learned-sink --attn-sink=learned
sigmoid --attn-score=sigmoid
hybrid --mixer=hybrid"
deep="residual
no-residual --residual=off
post-norm --norm-placement=post
post-norm-no-residual --norm-placement=post --residual=off"
# prefix of their names, models, their flags -> a line each
lines() {
  echo "$2" | while read -r name flags; do echo "$1$name $3 $flags ${steps:+--steps=$steps}"; done
}
models() {
  lines '' "$seven" '--data=bigram-backcopy --layers=3 --steps=1500 --measure-every=50'
  lines text- "$seven" '--data=self --layers=3 --steps=600 --measure-every=50'
  lines '' "$deep" '--data=bigram-backcopy --layers=12 --steps=120 --measure-every=40'
}
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
echo "trains $(models | wc -l) models, $cores at a time; each writes to $folder/NAME.txt"
models | tr '\n' '\0' | xargs -0 -P "$cores" -n 1 "$home"/scripts/gallery.sh --one

"$home"/scripts/report.py plain g1 gated-norm-g1 dyt learned-sink sigmoid hybrid --out=report.html
"$home"/scripts/report.py text-plain text-g1 text-gated-norm-g1 text-dyt text-learned-sink text-sigmoid text-hybrid --out=text.html
"$home"/scripts/report.py residual no-residual post-norm post-norm-no-residual --out=depth.html
"$home"/scripts/report.py plain g1 gated-norm-g1 learned-sink --out=four.html --pictures=pictures  # those of the README
echo "look at $folder/report.html, $folder/text.html and $folder/depth.html"
