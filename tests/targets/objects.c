// objects: a server's objects as redis has them: a client whose arguments are counted objects, each a word of bit-fields
// and a pointer to a text with its length in front of it. On command, one a line:
//   call N   one call of process_command(), then of set_key(); says what was handed over, as JSON
//   quit
// The layouts are those of redis 7 (server.h, sds.h), the names its own; nothing else is.
#include <stdint.h>
#include <string.h>

#include "protocol.h"

typedef char* sds;

struct __attribute__((__packed__)) sdshdr8 {
  uint8_t len;
  uint8_t alloc;
  unsigned char flags;
  char buf[];
};

typedef struct redisObject {
  unsigned type : 4;
  unsigned encoding : 4;
  unsigned lru : 24;
  int refcount;
  void* ptr;
} robj;

typedef struct redisDb {
  void* dict;
  int id;
  long long avg_ttl;
} redisDb;

typedef struct client {
  uint64_t id;
  uint64_t flags;
  void* conn;
  int resp;
  redisDb* db;
  robj* name;
  sds querybuf;
  size_t qb_pos;
  size_t querybuf_peak;
  int argc;
  robj** argv;
  int argv_len;
} client;

enum { kMostArguments = 3 };

static void sds_set(struct sdshdr8* header, size_t room, const char* text) {
  header->len = (uint8_t)strlen(text);
  header->alloc = (uint8_t)(room - sizeof *header - 1);
  header->flags = 1;  // SDS_TYPE_8
  memcpy(header->buf, text, (size_t)header->len + 1);
}

TARGET_FUNCTION int process_command(client* c) {
  int sum = c->argc;
  for (int i = 0; i < c->argc; ++i) sum += ((unsigned char*)c->argv[i]->ptr)[-3];  // sdslen()
  return sum;
}

TARGET_FUNCTION int set_key(client* c, redisDb* db, robj* key, robj* val, int flags) {
  ++val->refcount;
  return (int)(val->type + key->encoding) + db->id + c->resp + flags;
}

static void say(const robj* o) {
  const struct sdshdr8* header = (const struct sdshdr8*)((const char*)o->ptr - sizeof *header);
  printf("{\"type\":%u,\"encoding\":%u,\"lru\":%u,\"refcount\":%d,\"ptr\":\"%s\",\"len\":%u,\"alloc\":%u}", o->type,
         o->encoding, o->lru, o->refcount, (const char*)o->ptr, header->len, header->alloc);
}

static void call(int n) {
  static char rooms[kMostArguments][64];
  static robj objects[kMostArguments];
  static robj* argv[kMostArguments];
  static redisDb db = {NULL, 11, -5};
  char texts[kMostArguments][32] = {"SET"};
  snprintf(texts[1], sizeof texts[1], "key:%d", n);
  snprintf(texts[2], sizeof texts[2], "the value of %d", n);
  for (int i = 0; i < kMostArguments; ++i) {
    struct sdshdr8* header = (struct sdshdr8*)rooms[i];
    sds_set(header, sizeof rooms[i], texts[i]);
    objects[i] = (robj){(unsigned)i, 8 + (unsigned)i, 0xffffffu - (unsigned)(n + i), n + i, header->buf};
    argv[i] = &objects[i];
  }
  client c = {(uint64_t)n << 33 | 7, 1, NULL, 3, &db, NULL, NULL, 0, 0, kMostArguments, argv, kMostArguments};
  printf("{\"id\":%llu,\"argc\":%d,\"argv\":[", (unsigned long long)c.id, c.argc);
  for (int i = 0; i < c.argc; ++i) {
    if (i > 0) printf(",");
    say(c.argv[i]);
  }
  const int results[] = {process_command(&c), set_key(&c, &db, argv[1], argv[2], 4)};
  printf("],\"results\":[%d,%d]}\n", results[0], results[1]);
  fflush(stdout);
}

int main(void) {
  target_ready("objects");
  int n = 0;
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0;)
    if (sscanf(line, "call %d", &n) == 1) call(n);
  return target_result(1);
}
