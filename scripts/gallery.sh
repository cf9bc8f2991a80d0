#!/bin/sh
# Trains small models in which the papers' effects show, and sets them side by side: gallery/report.html, and gallery/depth.html
# of a deep model with and without residual connections, its norms before the sums and after them. A model trains on one core,
# beside the others: five and a half minutes on two cores. Goes on where it was stopped.
# usage: scripts/gallery.sh        (make gallery builds ./train first)
set -eu
cd "$(dirname "$0")/.."
mkdir -p gallery

if [ "${1:-}" = --one ]; then  # "name flags", of which no word holds a space
  set -- $2
  name=$1
  shift
  # (./train resumes the run that was stopped, and is done at once with one that has ended)
  ./train --out=gallery/"$name" --resume --keep=1 --save-every=500 --sample-tokens=0 --threads=1 --data=bigram-backcopy \
    --batch=8 --context=64 --qk-norm=off --seed=1 "$@" >gallery/"$name".txt 2>&1 || { cat gallery/"$name".txt >&2; exit 255; }
  echo "trained  $name: ./train --out=gallery/$name $*"
  exit
fi

# The models, those that take longest first.
models() {
  while read -r name flags; do echo "$name --layers=3 --steps=2500 --measure-every=100 $flags"; done <<END
gated-norm-g1 --norm=gated --attn=g1
dyt --norm=dyt --embedding-scale=on
plain
g1 --attn=g1
learned-sink --attn-sink=learned
sigmoid --attn-score=sigmoid
hybrid --mixer=hybrid
END
  while read -r name flags; do echo "$name --layers=12 --steps=120 --measure-every=40 $flags"; done <<END
residual
no-residual --residual=off
post-norm --norm-placement=post
post-norm-no-residual --norm-placement=post --residual=off
END
}
echo "trains $(models | wc -l) models, $(nproc) at a time; each writes to gallery/NAME.txt"
models | xargs -d '\n' -P "$(nproc)" -n 1 scripts/gallery.sh --one

cd gallery
../scripts/report.py plain g1 gated-norm-g1 dyt learned-sink sigmoid hybrid --out=report.html
../scripts/report.py residual no-residual post-norm post-norm-no-residual --out=depth.html
../scripts/report.py plain g1 gated-norm-g1 learned-sink --out=four.html --pictures=pictures  # those of the README
echo "look at gallery/report.html and gallery/depth.html"
