#include "daemon/symbols/restartable.hpp"

#include <cstring>

namespace probed::symbols {
namespace {

// struct rseq_cs, linux/rseq.h.
struct Descriptor {
  std::uint32_t version, flags;
  std::uint64_t start_ip, post_commit_offset, abort_ip;
};
static_assert(sizeof(Descriptor) == 32);

constexpr std::uint64_t kLongest = 64 << 10;  // bytes of code; real ones have some dozens

}  // namespace

std::vector<RestartableSequence> parse_restartable_sequences(std::span<const std::byte> section) {
  std::vector<RestartableSequence> sequences;
  for (; section.size() >= sizeof(Descriptor); section = section.subspan(sizeof(Descriptor))) {
    Descriptor d;
    std::memcpy(&d, section.data(), sizeof d);
    if (d.version != 0 || d.start_ip == 0 || d.post_commit_offset == 0 || d.post_commit_offset > kLongest) continue;
    sequences.push_back({{d.start_ip}, {d.start_ip + d.post_commit_offset}, {d.abort_ip}});
  }
  return sequences;
}

}  // namespace probed::symbols
