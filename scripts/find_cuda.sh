#!/bin/sh
# Prints where a program of CUDA is: in CUDA_HOME, on the path, or where CUDA is usually installed. Nothing where there
# is none.
# usage: scripts/find_cuda.sh nvcc|nvdisasm|cuobjdump|compute-sanitizer|ncu
set -u
for home in ${CUDA_HOME:+"$CUDA_HOME"} on-the-path /usr/local/cuda /usr/local/cuda-* /opt/cuda; do
  if [ "$home" = on-the-path ]; then
    command -v "$1" && exit
    continue
  fi
  for folder in bin compute-sanitizer extras/compute-sanitizer; do
    [ -f "$home/$folder/$1" ] && [ -x "$home/$folder/$1" ] && echo "$home/$folder/$1" && exit
  done
done
exit 0
