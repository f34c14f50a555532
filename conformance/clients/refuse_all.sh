#!/bin/sh
# A client that refuses everything, always for the same reason. It must fail.
[ "$1" = features ] && exit 0
echo "reject ${REFUSE_AS:-schema}"
exit 10
