"""For python3: threads that compute, compress and read files. See threads.c for what it prints."""
import ctypes
import hashlib
import json
import os
import threading
import time
import zlib

WORKERS = 3
rounds = [0] * WORKERS
libc = ctypes.CDLL(None)
libc.strtoul.restype = ctypes.c_ulong


def wrong(what, seed):
    print("WRONG", what, "of seed", seed, flush=True)


def do_round(seed):
    numbers = {str(seed + i): seed + i for i in range(50)}
    if any(int(key) != value for key, value in json.loads(json.dumps(numbers)).items()):
        wrong("the JSON", seed)
    text = str(seed).encode() * 500
    if hashlib.sha256(text).digest() != hashlib.sha256(bytearray(text)).digest():
        wrong("the hash", seed)
    if zlib.decompress(zlib.compress(text, 1)) != text:
        wrong("the zlib", seed)
    if libc.strtoul(str(seed).encode(), None, 10) != seed:
        wrong("C's number", seed)
    if "self" not in os.listdir("/proc"):
        wrong("the directory", seed)


def work(w):
    seed = 0
    while True:
        seed += 1
        do_round(seed)
        rounds[w] += 1
        if seed % 16 == 0:
            answer = []
            thread = threading.Thread(target=answer.append, args=[seed])
            thread.start()
            thread.join()
            if answer != [seed]:
                wrong("the thread's answer", seed)
        time.sleep(0.003)


for number in range(WORKERS):
    threading.Thread(target=work, args=[number], daemon=True).start()
while True:
    print("beat", min(rounds), flush=True)
    time.sleep(0.02)
