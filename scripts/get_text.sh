#!/bin/sh
# Writes a text of 40 MB, 36 times Tiny Shakespeare: Webster's dictionary of 1913 with what was added since (GCIDE,
# GPL), out of a Debian package of one version. Needs apt-get, dpkg-deb and a network; nothing is installed.
# usage: scripts/get_text.sh FILE           then ./train --data=FILE, or scripts/tokenize.py for tokens of several bytes
# (Three bytes of it are no UTF-8, which scripts/tokenize.py wants: iconv -c -f UTF-8 -t UTF-8 FILE >NEW leaves them
# out.)
set -eu
[ $# -eq 1 ] && [ -n "$1" ] && [ "${1#-}" = "$1" ] || { echo "get_text: expected the name of the file to write: scripts/get_text.sh FILE" >&2; exit 1; }
package=dict-gcide=0.48.5+nmu2
sum=802beb667e1fb666203e750f1faea60d5c202ac5430c2083c4180494609f10a7
[ ! -e "$1" ] || { echo "get_text: $1: is there already; name another file, or remove it" >&2; exit 1; }
[ -d "$(dirname "$1")" ] || { echo "get_text: $1: there is no folder $(dirname "$1"): make it first" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && apt-get download -q "$package") >&2 ||
  { echo "get_text: apt-get download $package failed: this Debian may have another version" >&2; exit 1; }
dpkg-deb -x "$folder"/*.deb "$folder/x"
gzip -dc "$folder/x/usr/share/dictd/gcide.dict.dz" > "$folder/text"
echo "$sum  $folder/text" | sha256sum -c --quiet - >&2 ||
  { echo "get_text: the text is not the one that was expected (sha256 $sum)" >&2; exit 1; }
mv "$folder/text" "$1"
echo "wrote $1, $(wc -c < "$1") bytes"
