# Background jobs, their statuses, waiting for them, signals between them.
pids=
for i in 1 2 3 4 5 6 7 8; do
  (exit "$i") &
  pids="$pids $!"
done
for pid in $pids; do
  wait "$pid"
  echo "job: $?"
done
sleep 30 &
kill -TERM $!
wait $!
echo "killed: $?"
sleep 30 &
kill -STOP $!
kill -CONT $!
kill -KILL $!
wait $! 2>/dev/null
echo "stopped, continued, killed: $?"
(trap 'echo caught; exit 7' USR1; : >ready; while :; do sleep 0.01; done) &
while [ ! -e ready ]; do sleep 0.01; done
kill -USR1 $!
wait $!
echo "caught: $?"
wait
