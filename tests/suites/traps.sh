# Traps, subshells, exec, functions, exit statuses.
trap 'echo "on exit: $?"' EXIT
f() { return $(($1 % 200)); }
i=0
sum=0
while [ $i -lt 300 ]; do
  f $i
  sum=$((sum + $?))
  i=$((i + 1))
done
echo "sum $sum"
trap 'echo "usr1"' USR1
for i in 1 2 3; do kill -USR1 $$; done
trap '' USR2
kill -USR2 $$
echo "ignored"
(trap - USR1; kill -USR1 "$(sh -c 'echo $PPID')"; echo "not reached") 2>/dev/null
echo "subshell: $?"
(exec sh -c 'exit 9')
echo "exec: $?"
nonexistent-command-of-ours 2>/dev/null
echo "not found: $?"
/ 2>/dev/null
echo "not executable: $?"
sh -c 'kill -ABRT $$' 2>/dev/null
echo "aborted: $?"
sh -c 'kill -TRAP $$' 2>/dev/null
echo "trapped: $?"
exit 3
