#!/bin/sh
# A client that dies: by a signal, or as programs end that did not expect something. It must fail.
[ "$1" = features ] && exit 0
case ${CRASH_WITH:-signal} in
signal) kill -SEGV $$ ;;
*) exit "$CRASH_WITH" ;;
esac
