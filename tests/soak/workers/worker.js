// For node: garbage, JSON, hashes, and calls on its threads. See threads.c for what it prints.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const zlib = require('zlib');

let rounds = 0;
let answers = 0;

function wrong(what, seed) {
  console.log(`WRONG ${what} of seed ${seed}`);
}

function round(seed) {
  const object = {};
  for (let i = 0; i < 50; i++) object['k' + (seed + i)] = [seed, i, String(i)];
  const back = JSON.parse(JSON.stringify(object));
  for (let i = 0; i < 50; i++) if (back['k' + (seed + i)][1] !== i) wrong('the JSON', seed);
  const text = 'text ' + seed;
  const hash = (t) => crypto.createHash('sha256').update(t).digest('hex');
  if (hash(text) !== hash(Buffer.from(text))) wrong('the hash', seed);
  let sum = 0n;
  for (let i = 0n; i < 20n; i++) sum += i * BigInt(seed);
  if (sum !== 190n * BigInt(seed)) wrong('the sum', seed);
  const zipped = Buffer.alloc(3000, text);
  zlib.deflate(zipped, (error, small) => {  // on a thread of libuv's
    if (error) return wrong('no deflate', seed);
    zlib.inflate(small, (_, large) => {
      if (!large || !large.equals(zipped)) wrong('the deflate', seed);
      answers++;
    });
  });
  fs.stat('/', (error, stat) => {
    if (error || !stat.isDirectory()) wrong('the stat', seed);
    answers++;
  });
}

function go() {
  round(rounds++);
  setTimeout(go, 3);
}

go();
setInterval(() => console.log(`beat ${Math.min(rounds, answers >> 1)}`), 20);
process.stdout.on('error', () => process.exit(1));
