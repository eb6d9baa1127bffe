// The program's operators new and delete: malloc's, until the tracer is alone. Then a killed thread may have died
// within malloc, and its lock is held for good: memory comes in pieces from the kernel, and is given back by the
// process' end, which is near.
#include "daemon/base/alone.hpp"

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

constexpr std::size_t kPiece = 4 << 20;  // bytes
// One thread is left, so nothing guards these.
std::byte* piece = nullptr;
std::size_t room = 0;

void* take(std::size_t size, std::size_t alignment) {
  std::size_t skipped = piece ? -reinterpret_cast<std::uintptr_t>(piece) & (alignment - 1) : 0;
  if (room < skipped || room - skipped < size) {
    const std::size_t wanted = size + alignment > kPiece ? size + alignment : kPiece;
    void* const mapped = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    piece = static_cast<std::byte*>(mapped);
    room = wanted;
    skipped = 0;
  }
  std::byte* const taken = piece + skipped;
  piece = taken + size;
  room -= skipped + size;
  return taken;
}

void* allocate(std::size_t size, std::size_t alignment) {
  if (size == 0) size = 1;
  void* memory = nullptr;
  if (probed::alone()) [[unlikely]]
    memory = take(size, alignment);
  else if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__)
    memory = std::malloc(size);
  else
    memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void deallocate(void* memory) {
  if (!probed::alone()) [[likely]]
    std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { deallocate(memory); }
void operator delete(void* memory, std::size_t) noexcept { deallocate(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { deallocate(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { deallocate(memory); }
#endif
