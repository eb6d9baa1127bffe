// A shared library that is built twice, as libfixture_a and libfixture_b.
extern "C" {
__attribute__((noinline, used)) int fixture_shared_name(int x) {
  return x * FIXTURE_FACTOR;
}
#if FIXTURE_FACTOR == 2
__attribute__((noinline, used)) int fixture_half_private(int x) {
  return x + FIXTURE_FACTOR;
}
#else
__attribute__((noinline, used)) static int fixture_half_private(int x) {
  return x - FIXTURE_FACTOR;
}
#endif
}
