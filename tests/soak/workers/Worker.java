// Worker: threads that make garbage, objects, exceptions and hashes. See threads.c for what it prints.
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

public final class Worker {
  static final int WORKERS = 3;

  static void wrong(String what, long seed) {
    System.out.println("WRONG " + what + " of seed " + seed);
  }

  static int lengthOf(String text) {
    return text.length();  // compiled code finds out about null by a fault
  }

  static boolean fails(String text) {
    try {
      return lengthOf(text) < 0;
    } catch (NullPointerException expected) {
      return true;
    }
  }

  static void round(long seed) throws Exception {
    Map<String, Long> numbers = new HashMap<>();
    List<String> keys = new ArrayList<>();
    for (long i = 0; i < 50; ++i) {
      String key = Long.toString(seed + i * 7919);
      numbers.put(key, seed + i * 7919);
      keys.add(key);
    }
    Collections.sort(keys);
    for (String key : keys)
      if (numbers.get(key) != Long.parseLong(key)) wrong("the map", seed);
    byte[] first = MessageDigest.getInstance("SHA-256").digest(keys.get(0).getBytes());
    byte[] second = MessageDigest.getInstance("SHA-256").digest(new StringBuilder(keys.get(0)).toString().getBytes());
    if (!Arrays.equals(first, second)) wrong("the hash", seed);
    byte[] garbage = new byte[20_000];
    garbage[(int) (seed & 8191)] = 7;
    long sum = 0;
    for (byte b : garbage) sum += b;
    if (sum != 7) wrong("the sum", seed);
    if (!fails(null) || fails(keys.get(1))) wrong("the exception", seed);
  }

  static void work(AtomicLong rounds, long seed) {
    try {
      for (;; seed = seed * 6364136223846793005L + 1442695040888963407L) {
        round(seed);
        if (rounds.incrementAndGet() % 64 == 0) shortLife(seed);
        Thread.sleep(3);
      }
    } catch (Exception exception) {
      wrong("an exception, " + exception + ",", seed);
    }
  }

  static void shortLife(long seed) throws Exception {
    long[] answer = new long[1];
    Thread thread = new Thread(() -> answer[0] = seed);
    thread.start();
    thread.join();
    if (answer[0] != seed) wrong("the thread's answer", seed);
  }

  public static void main(String[] arguments) throws Exception {
    AtomicLong[] rounds = new AtomicLong[WORKERS];
    for (int i = 0; i < WORKERS; ++i) {
      AtomicLong mine = rounds[i] = new AtomicLong();
      long seed = i + 1;
      Thread worker = new Thread(() -> work(mine, seed));
      worker.setDaemon(true);
      worker.start();
    }
    while (!System.out.checkError()) {
      System.out.println("beat " + Arrays.stream(rounds).mapToLong(AtomicLong::get).min().getAsLong());
      Thread.sleep(20);
    }
  }
}
