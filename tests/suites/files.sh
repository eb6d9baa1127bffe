# Files: made, moved, linked, found, locked, removed.
mkdir -p a/b/c
i=0
while [ $i -lt 30 ]; do
  echo "$i" >"a/f$i"
  i=$((i + 1))
done
mv a/f1 a/b/g1
ln a/f2 a/b/hard
ln -s ../f3 a/b/soft
cat a/b/g1 a/b/hard a/b/soft
find a -type f | sort | wc -l
chmod 600 a/f4
stat -c %a a/f4
cp -r a copy
diff -r a copy && echo same
tar cf - a | tar tf - | sort | tail -n 3
dd if=/dev/zero bs=1000 count=100 2>/dev/null | cksum
rm -r a copy
ls
echo "left: $?"
