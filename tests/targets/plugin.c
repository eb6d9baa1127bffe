// The shared object that dlopener loads.
__thread int plugin_local __attribute__((tls_model("global-dynamic"))) = 5;
__attribute__((noinline, noipa, visibility("default"))) int plugin_work(int x) {
  plugin_local = x;
  return x * 7 + 3;
}
__attribute__((visibility("default"))) int plugin_number = 77;
// What it does before dlopen() returns.
__attribute__((noinline, noipa, visibility("default"))) int plugin_begin(int x) { return x + 1; }
__attribute__((constructor)) static void begin(void) { plugin_number += plugin_begin(-1); }
