#!/bin/sh
# A client that says of everything that it is optional and it does not have it. It must fail.
[ "$1" = features ] && exit 0
exit 11
