#!/bin/sh
# Runs a conformance client against vectors/v1, as PROTOCOL.md says. Needs a POSIX shell and nothing else; a tool that
# makes SHA-256 digests is used where there is one.
#
#     conformance/run.sh [--only PREFIX] [--expect-failures FILE] [--vectors DIR] -- CLIENT...
set -u
LC_ALL=C
export LC_ALL
usage() {
    echo "usage: run.sh [--only PREFIX] [--expect-failures FILE] [--vectors DIR] -- CLIENT..." >&2
    exit 2
}
cannot() {
    echo "run.sh: $1" >&2
    exit 3
}

start=$(pwd)
here=$(cd "$(dirname "$0")" && pwd) || exit 3
vectors=$here/../vectors/v1
only=
known=
while [ $# -gt 0 ]; do
    case $1 in
    --only) [ $# -gt 1 ] || usage; only=$2; shift 2 ;;
    --expect-failures) [ $# -gt 1 ] || usage; known=$2; shift 2 ;;
    --vectors) [ $# -gt 1 ] || usage; vectors=$2; shift 2 ;;
    --) shift; break ;;
    *) usage ;;
    esac
done
[ $# -gt 0 ] || usage
told=$*

# A word that names a file from here is made absolute: each case is asked in its own folder.
count=$#
first=1
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    case $word in
    /*) ;;
    */*) [ ! -f "$word" ] || word=$start/$word ;;
    *) [ "$first" = 1 ] || [ ! -f "$word" ] || word=$start/$word ;;
    esac
    first=0
    set -- "$@" "$word"
    count=$((count - 1))
done
command -v "$1" >/dev/null 2>&1 || cannot "$1: no such client"

vectors=$(cd "$vectors" 2>/dev/null && pwd) || cannot "no vectors in $vectors"
index=$vectors/INDEX.tsv
[ -r "$index" ] || cannot "no vectors: $index"

sha256() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum "$1"
    elif command -v shasum >/dev/null 2>&1; then shasum -a 256 "$1"
    elif command -v openssl >/dev/null 2>&1; then openssl dgst -sha256 -r "$1"
    fi | cut -d ' ' -f 1
}
digest=$(sha256 "$index")
read -r head <"$index"
if [ -n "$digest" ]; then
    [ -r "$vectors/SHA256SUMS" ] || cannot "$vectors/SHA256SUMS: cannot be read, and INDEX.tsv names it"
    summed=$(sha256 "$vectors/SHA256SUMS")
    [ "$head" = "# mesh/1 vectors v1 sha256sums:$summed" ] ||
        cannot "$vectors/SHA256SUMS: not the file that INDEX.tsv names: expected SHA-256 ${head##*:}, got $summed"
fi
if command -v sha256sum >/dev/null 2>&1; then
    checked=$(cd "$vectors" && sha256sum -c SHA256SUMS 2>/dev/null) || {
        wrong=$(printf '%s\n' "$checked" | grep -v ': OK$' | head -n 1)
        [ -n "$wrong" ] || cannot "$vectors/SHA256SUMS: expected lines as sha256sum -c reads them"
        cannot "$vectors/${wrong%: FAILED*}: not the file that SHA256SUMS names, or it cannot be read"
    }
fi

work=${TMPDIR:-/tmp}/mesh-conformance.$$
(umask 077 && mkdir "$work") || exit 3
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
: >"$work/known"
if [ -n "$known" ]; then
    [ -r "$known" ] || cannot "$known: cannot be read"
    sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$known" >"$work/known"
    while read -r name; do
        cut -f 1 "$index" | grep -q -x -F -e "$name" || cannot "$known: $name is no case of the index"
    done <"$work/known" || exit 3
fi

cases=0 passed=0 failed=0 expected=0 missing=0
fail() {
    failed=$((failed + 1))
    echo "FAIL $1: $2"
}

(cd "$vectors" && "$@" features </dev/null >"$work/features" 2>/dev/null) || {
    : >"$work/features"
    fail features 'the operation `features` did not answer with names and exit 0'
}

tab=$(printf '\t')
while IFS=$tab read -r id op arguments exit answer spec rule feature; do
    case $id in '#'*) continue ;; "$only"*) ;; *) continue ;; esac
    cases=$((cases + 1))
    [ -n "$feature" ] || cannot "$index: $id: expected 8 fields with tabs between"
    [ -f "$vectors/$id/vector.json" ] || cannot "$index: no case $id: $vectors/$id/vector.json is not there"
    [ "$arguments" != - ] || arguments=
    case $exit in
    10) echo "reject $answer" ;;
    0) [ "$answer" = - ] || printf '%s\n' "$answer" ;;
    *) cannot "$index: $id: expected exit 0 or 10, got $exit" ;;
    esac >"$work/wanted"
    # $arguments is split at its spaces, and holds no pattern
    (cd "$vectors/$id" && set -f && exec "$@" "$op" $arguments) </dev/null >"$work/got" 2>/dev/null
    code=$?
    if [ "$code" = 11 ] && [ "$feature" != - ] && [ ! -s "$work/got" ] && ! grep -q -x -F -e "$feature" "$work/features"
    then
        missing=$((missing + 1))
        continue
    fi
    wrong=
    if [ "$code" != "$exit" ] || ! cmp -s "$work/wanted" "$work/got"; then
        wrong="$spec $rule: expected exit $exit, $(cat "$work/wanted"); got exit $code, $(head -c 200 "$work/got")"
    fi
    if grep -q -x -F -e "$id" "$work/known"; then
        if [ -n "$wrong" ]; then
            expected=$((expected + 1))
        else
            fail "$id" "passes, and is on the list of expected failures"
        fi
    elif [ -n "$wrong" ]; then
        fail "$id" "$wrong"
    else
        passed=$((passed + 1))
    fi
done <"$index"
[ "$cases" -gt 0 ] || cannot "no case begins with $only"

echo "spec mesh/1"
echo "index sha256:${digest:-unknown}"
echo "client $told"
echo "cases $cases passed $passed failed $failed expected-failures $expected not-offered $missing"
[ "$failed" = 0 ] || exit 10
