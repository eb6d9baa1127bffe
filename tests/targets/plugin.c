// The shared object that dlopener loads.
__attribute__((noinline, noipa, visibility("default"))) int plugin_work(int x) {
  return x * 7 + 3;
}
__attribute__((visibility("default"))) int plugin_number = 77;
