#!/bin/sh
# Two builds of ./train, as for two kinds of CPU, and what they write: a checkpoint of one goes on in the other, and
# every file that comes of it is the same, byte for byte.
# usage: scripts/exchange.sh "COMMAND OF ONE" "COMMAND OF THE OTHER"
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# train COMMAND OUT ARGUMENT...
train() {
  $1 --out="$folder/$2" --data=bigram-backcopy --layers=2 --hidden=32 --heads=2 --kv-heads=1 --batch=2 --context=32 \
    --val-batches=1 --attn=g1 --sample-tokens=0 --warmup=1 --steps=4 --save-every=2 --keep=0 $flags $3 >"$folder/said" 2>&1 ||
    { cat "$folder/said"; exit 1; }
}
same() { cmp "$folder/$1" "$folder/$2" && compared=$((compared + 1)); }
compared=0
for flags in "--precision=fp32 --mixer=hybrid --norm=gated --experts=2" "--precision=bf16 --qk-norm=on"; do
  rm -rf "$folder"/*
  train "$1" one "" # four steps
  train "$2" other ""
  mkdir "$folder/first" "$folder/second" # two steps of one, two of the other
  cp "$folder/one/step_00000002.safetensors" "$folder/first"
  cp "$folder/other/step_00000002.safetensors" "$folder/second"
  train "$2" first --resume
  train "$1" second --resume
  for file in step_00000002.safetensors step_00000004.safetensors measures.safetensors; do
    for out in other first second; do same "one/$file" "$out/$file"; done
  done
done
$1 --from="$folder/one" --export="$folder/export" >"$folder/said"
$2 --from="$folder/one" --export="$folder/export2" >"$folder/said"
for file in config.json model.safetensors; do same "export/$file" "export2/$file"; done
echo "$compared assertions: files that are the same"
