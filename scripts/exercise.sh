#!/bin/sh
# The exercises (tests/exercises/): what `make exercise`, `make try` and `make solution` do beside compiling.
#   scripts/exercise.sh list               what there is, what is done, what is next
#   scripts/exercise.sh take NAME          exercises/NAME.cu: the exercise, without what is to be written
#   scripts/exercise.sh gap NAME           what it writes there
#   scripts/exercise.sh watch NAME         tries it at every save
#   scripts/exercise.sh solution NAME      what is to be written
#   scripts/exercise.sh whole NAME         the exercise with its solution
#   scripts/exercise.sh answers [ANSWER]   tests/exercises/answers.txt as one C++ file: every answer in a namespace
# A reference is a function (or a constant) of the project's own files, which a line names: // <<< from FILE: FUNCTION
set -eu
folder=tests/exercises

names() { ls $folder | sed -n 's/^[0-9][0-9]_\(.*\)\.cu$/\1/p'; }
file_of() {
  for f in $folder/[0-9][0-9]_"$1".cu; do
    [ -e "$f" ] && echo "$f" && return
  done
  echo "OP=$1: there is no such exercise; expected one of: $(names | tr '\n' ' ')" >&2
  exit 1
}
# $1 how: whole; gap, a gap in the place of the solution, and nothing of the project's kernel; solution, which alone is
# printed. $2 the file
set_together() {
  awk -v how="$1" '
    function from(file, name,   line, text, found) {
      while ((getline line <file) > 0) {
        if (line ~ "^constexpr .* " name " = ") { close(file); return "// (of " file ")\n" line "\n" }
        if (line ~ /^template /) { text = ""; found = 0 }
        text = text line "\n"
        if (line ~ "^[A-Za-z].* " name "\\(") found = 1
        if (found && line == "}") { close(file); return "// (of " file ")\n" text }
      }
      print file ": no function " name >"/dev/stderr"
      exit 1
    }
    /^\/\/ <<< from / { sub(/:$/, "", $4); if (how != "solution") printf "%s", from($4, $5); next }
    /^ *\/\/ <<< solution/ { inside = 1; if (how == "gap") { sub(/<<<.*/, "yours"); print } next }
    /^ *\/\/ >>>/ { inside = 0; if (how == "solution") print ""; next }
    /^ *PROJECT\(/ { project = 1 }
    project && /ctx\)\);$/ { project = 0; if (how == "gap") next }
    project && how == "gap" { next }
    how == "solution" ? inside : !(inside && how == "gap")' "$2"
}

[ $# -gt 1 ] || case "${1:-}" in list | answers) ;; *) set -- "" ;; esac
case "$1" in
list)
  next=
  for name in $(names); do
    said=exercises/$name.said state=
    if [ ! -e exercises/$name.cu ]; then state="-"
    elif [ -e $said ] && [ ! exercises/$name.cu -nt $said ]; then state=$(sed -n '1s/:.*//p;1q' $said)
      [ -n "$state" ] || state=$(head -n 1 $said)
    else state="begun"
    fi
    mark=" "
    if [ -z "$next" ] && [ "$state" != "equal to the bit" ] && [ "$state" != "right, but in another order" ]; then
      next=$name mark=">"
    fi
    printf '%s %-20s %-28s %s\n' "$mark" "$name" "$state" "$(sed -n '1s/^.*, [a-z_0-9]*: //p' "$(file_of "$name")")"
  done
  [ -z "$next" ] && echo "All are done." && exit
  [ -e exercises/$next.cu ] && echo "next: make try OP=$next" || echo "next: make exercise OP=$next"
  ;;
take)
  file=$(file_of "$2")
  if [ -e "exercises/$2.cu" ]; then
    echo "exercises/$2.cu is there already and stays as it is; to begin anew, move it away" >&2
    exit 1
  fi
  mkdir -p exercises
  set_together gap "$file" >"exercises/$2.cu"
  echo "wrote exercises/$2.cu: read it, write the kernel, then: make try OP=$2"
  ;;
watch)
  if [ ! -e "exercises/$2.cu" ]; then
    echo "exercises/$2.cu is not there: make exercise OP=$2 begins it" >&2
    exit 1
  fi
  if ! command -v entr >/dev/null; then
    echo "WATCH=1 tries again at every save by means of entr, which is not here (Debian: apt-get install entr)" >&2
    exit 1
  fi
  echo "exercises/$2.cu" | exec entr -c -s "${MAKE:-make} --no-print-directory try OP=$2 WATCH="
  ;;
gap | solution | whole)
  set_together "$1" "$(file_of "$2")"
  ;;
answers)
  TMP=$(mktemp -d)
  trap 'rm -r "$TMP"' EXIT
  echo '#include "tests/exercises/answers.h"'
  sed -n '/^#include/p' $folder/[0-9]*.cu | sort -u
  i=0
  # Three lines an answer: which, a change of the solution as sed writes it, and what is said of it (for the test).
  awk 'NF && !/^#/' $folder/answers.txt | while read -r name answer && IFS= read -r change && read -r _; do
    [ "${2:-$answer}" = "$answer" ] || continue
    i=$((i + 1))
    file=$(file_of "$name")
    [ "$change" != "  -" ] || change=
    sed -E "/<<< solution/,/>>>/{
$change
}" "$file" >"$TMP/changed"
    if [ -n "$change" ] && cmp -s "$file" "$TMP/changed"; then
      echo "$folder/answers.txt: $name $answer changes nothing" >&2
      exit 1
    fi
    echo "namespace answer_$i {"
    set_together whole "$TMP/changed" | sed "s|^#include.*||"
    echo "}"
    echo "static const Answer answer_of_$i(\"$name\", \"$answer\", answer_$i::exercise);"
  done
  ;;
*)
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
