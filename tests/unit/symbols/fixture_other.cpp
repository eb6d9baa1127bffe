// A second file with a static function of the same name as one in fixture.cpp.
__attribute__((noinline, used)) static int twin(int x) {
  return x * 13 + 5;
}
int other_file(int x);
int other_file(int x) {
  return twin(x) + 1;
}
