// The second of two functions named twin (unprobeable.c).
__attribute__((noinline, noipa)) static int twin(int x) {
  return x + 2;
}

int other_twin(int x);
int other_twin(int x) {
  return twin(x);
}
