// For mono: threads that make garbage, objects, exceptions and hashes. See threads.c for what it prints.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Security.Cryptography;
using System.Text;
using System.Threading;

static class Worker {
  const int Workers = 3;
  static readonly long[] rounds = new long[Workers];

  static void Wrong(string what, long seed) {
    Console.WriteLine("WRONG " + what + " of seed " + seed);
  }

  static bool Fails(string text) {
    try {
      return text.Length < 0;  // compiled code finds out about null by a fault
    } catch (NullReferenceException) {
      return true;
    }
  }

  static void Round(long seed) {
    var numbers = new Dictionary<string, long>();
    for (long i = 0; i < 50; ++i) numbers[(seed + i * 7919).ToString()] = seed + i * 7919;
    foreach (var pair in numbers)
      if (long.Parse(pair.Key) != pair.Value) Wrong("the dictionary", seed);
    using (var hash = SHA256.Create()) {
      var text = Encoding.UTF8.GetBytes(seed.ToString());
      if (!hash.ComputeHash(text).SequenceEqual(hash.ComputeHash((byte[])text.Clone()))) Wrong("the hash", seed);
    }
    var garbage = new byte[20000];
    garbage[(int)(seed & 8191)] = 7;
    long sum = 0;
    foreach (var b in garbage) sum += b;
    if (sum != 7) Wrong("the sum", seed);
    if (!Fails(null) || Fails("text")) Wrong("the exception", seed);
  }

  static void ShortLife(long seed) {
    long answer = 0;
    var thread = new Thread(() => answer = seed);
    thread.Start();
    thread.Join();
    if (answer != seed) Wrong("the thread's answer", seed);
  }

  static void Work(int w) {
    long seed = w + 1;
    for (;; seed = unchecked(seed * 6364136223846793005L + 1442695040888963407L) & 0xffffffffffff) {
      Round(seed);
      if (Interlocked.Increment(ref rounds[w]) % 64 == 0) ShortLife(seed);
      Thread.Sleep(3);
    }
  }

  static void Main() {
    for (int i = 0; i < Workers; ++i) {
      int mine = i;
      new Thread(() => Work(mine)) { IsBackground = true }.Start();
    }
    for (;;) {
      Console.WriteLine("beat " + rounds.Select((_, i) => Interlocked.Read(ref rounds[i])).Min());
      Thread.Sleep(20);
    }
  }
}
