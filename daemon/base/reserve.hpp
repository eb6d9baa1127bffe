// Room for very many elements at once: a glob has 50,000 matches, tens of megabytes for a moment.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace probed {

// Reserves, and asks for huge pages where that is worth it (madvise(2); a mere wish): without them such a container
// costs more faults than all the work on it.
template <class Container>
void make_room(Container& container, std::size_t count) {
  constexpr std::uintptr_t kHuge = 2 << 20;
  if (count <= container.capacity()) return;
  container.reserve(count);
  const auto begin = reinterpret_cast<std::uintptr_t>(container.data());
  const std::uintptr_t end = begin + count * sizeof(typename Container::value_type);
  const std::uintptr_t first = (begin + kHuge - 1) / kHuge * kHuge, last = end / kHuge * kHuge;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace probed
