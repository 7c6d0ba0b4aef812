#!/bin/sh
# Passes if ThreadSanitizer reports a data race in the command given.
output=$("$@" 2>&1)
case $output in
  *"ThreadSanitizer: data race"*) exit 0 ;;
esac
printf '%s\nno data race was reported\n' "$output"
exit 1
