// The second unit of namespaces.cpp.
namespace n1 {
extern int g;
[[gnu::used]] int far = 55;
}  // namespace n1
[[gnu::used]] int far = 56;
[[gnu::used]] static int local_only = 57;
extern int g;
namespace n1 {
__attribute__((noinline, noipa)) int far_called() { return far; }
}  // namespace n1
int far_function() { return n1::far_called() + 0 * (g + n1::g + local_only++ + ::far); }
