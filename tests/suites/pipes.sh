# Pipelines, redirections, here documents, command substitution, many short processes.
i=0
while [ $i -lt 40 ]; do
  echo "line $i $(echo "$i" | sed 's/./x/g')"
  i=$((i + 1))
done | sort -r | tee all | head -n 5
wc -l <all
cat <<END | tr a-z A-Z
here $(printf %s document) and $((6 * 7))
END
{ echo out; echo err >&2; } 2>errors | cat
cat errors
yes | head -n 1000 | wc -l # yes ends by SIGPIPE
false | true
echo "last of a pipeline: $?"
exec 3>third
echo three >&3
exec 3>&-
cat third
x=$(x=$(x=$(echo deep); echo "$x er"); echo "$x est")
echo "$x"
