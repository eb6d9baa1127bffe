// The library that constructors is linked with.
static int began;
__attribute__((noinline, noipa, visibility("default"))) int library_begin(int x) { return x + 1; }
__attribute__((constructor)) static void begin(void) { began = library_begin(0); }
__attribute__((visibility("default"))) int library_began(void) { return began; }
