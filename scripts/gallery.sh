#!/bin/sh
# Trains small models in which the papers' effects show, and sets them side by side: gallery/report.html, and gallery/depth.html
# of a deep model with and without residual connections, its norms
# before the sums and after them. Five minutes on two cores. Goes on where it was stopped.
# usage: scripts/gallery.sh        (make gallery builds ./train first)
set -eu
cd "$(dirname "$0")/.."
mkdir -p gallery

# One model after another: ./train resumes the run that was stopped, and is done at once with one that has ended.
models=11
model=0
train() { # name, flags
  name=$1
  shift
  model=$((model + 1))
  echo "$model/$models  $name: ./train --out=gallery/$name $*"
  ./train --out=gallery/"$name" --resume --keep=1 --save-every=500 --sample-tokens=0 --data=bigram-backcopy --batch=8 \
    --context=64 --qk-norm=off --seed=1 "$@" >gallery/"$name".txt 2>&1 || { cat gallery/"$name".txt >&2; exit 1; }
}
three_layers() {
  name=$1
  shift
  train "$name" --layers=3 --steps=2500 --measure-every=100 "$@"
}
three_layers plain
three_layers g1 --attn=g1
three_layers gated-norm-g1 --norm=gated --attn=g1
three_layers dyt --norm=dyt --embedding-scale=on
three_layers learned-sink --attn-sink=learned
three_layers sigmoid --attn-score=sigmoid
three_layers hybrid --mixer=hybrid
twelve_layers() {
  name=$1
  shift
  train "$name" --layers=12 --steps=120 --measure-every=40 "$@"
}
twelve_layers residual
twelve_layers no-residual --residual=off
twelve_layers post-norm --norm-placement=post
twelve_layers post-norm-no-residual --norm-placement=post --residual=off

cd gallery
../scripts/report.py plain g1 gated-norm-g1 dyt learned-sink sigmoid hybrid --out=report.html
../scripts/report.py residual no-residual post-norm post-norm-no-residual --out=depth.html
../scripts/report.py plain g1 gated-norm-g1 learned-sink --out=four.html --pictures=pictures  # those of the README
echo "look at gallery/report.html and gallery/depth.html"
