#!/bin/sh
# A client that accepts everything and says nothing. It must fail.
exit 0
