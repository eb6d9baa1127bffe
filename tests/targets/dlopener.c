// dlopener [PLUGIN]: loads and unloads a shared object (default: plugin.so beside the program) on command, one a line:
//   open | close | call N | loop N (N times open, call once, close) | quit
// Each is answered: "opened ADDRESS-OF-plugin_work", "closed", "called N SUM", "looped N SUM". "go" is accepted too.
#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#include "protocol.h"

typedef int (*PluginWork)(int);
static void* handle;
static PluginWork plugin_work;
static char plugin_path[PATH_MAX + 16];
static long wrong;

static void find_plugin(int argc, char** argv) {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0) _exit(2);
  self[length] = '\0';
  *strrchr(self, '/') = '\0';
  if (argc > 1)
    snprintf(plugin_path, sizeof plugin_path, "%s", argv[1]);
  else
    snprintf(plugin_path, sizeof plugin_path, "%s/plugin.so", self);
}

static void open_plugin(void) {
  handle = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    fprintf(stderr, "%s\n", dlerror());
    _exit(2);
  }
  void* symbol = dlsym(handle, "plugin_work");
  memcpy(&plugin_work, &symbol, sizeof symbol);
}

static void close_plugin(void) {
  if (handle && dlclose(handle) != 0) ++wrong;
  handle = NULL;
  plugin_work = NULL;
}

static long call_plugin(long times) {
  long sum = 0;
  for (long i = 0; plugin_work && i < times; ++i) {
    const int got = plugin_work((int)i);
    wrong += got != (int)i * 7 + 3;
    sum += got;
  }
  return sum;
}

static long loop_plugin(long times) {
  long sum = 0;
  for (long i = 0; i < times; ++i) {
    open_plugin();
    sum += call_plugin(1);
    close_plugin();
  }
  return sum;
}

static void obey(const char* line) {
  long n = 1;
  if (strcmp(line, "open") == 0) {
    open_plugin();
    printf("opened 0x%lx\n", (unsigned long)plugin_work);
  } else if (strcmp(line, "close") == 0) {
    close_plugin();
    printf("closed\n");
  } else if (sscanf(line, "call %ld", &n) == 1) {
    printf("called %ld %ld\n", n, call_plugin(n));
  } else if (sscanf(line, "loop %ld", &n) == 1) {
    printf("looped %ld %ld\n", n, loop_plugin(n));
  } else if (strcmp(line, "go") != 0) {
    printf("unknown command\n");
  }
  fflush(stdout);
}

int main(int argc, char** argv) {
  find_plugin(argc, argv);
  target_ready("dlopener");
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0;) obey(line);
  return target_result(wrong == 0);
}
