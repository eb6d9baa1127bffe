// Strong types for the things that are all "just integers" and must never be mixed up.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <functional>

namespace probed {

// A virtual address in a target's address space. Never dereferenceable here.
struct RemoteAddr {
  std::uint64_t value = 0;
  auto operator<=>(const RemoteAddr&) const = default;
  explicit operator bool() const { return value != 0; }
};
constexpr RemoteAddr operator+(RemoteAddr a, std::uint64_t n) { return {a.value + n}; }
constexpr RemoteAddr operator-(RemoteAddr a, std::uint64_t n) { return {a.value - n}; }
constexpr std::int64_t operator-(RemoteAddr a, RemoteAddr b) { return static_cast<std::int64_t>(a.value - b.value); }

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

// An offset into a file on disk.
struct FileOffset {
  std::uint64_t value = 0;
  auto operator<=>(const FileOffset&) const = default;
};

// An address as an ELF file's headers and symbols give it, before the loader adds the load bias.
struct ElfAddr {
  std::uint64_t value = 0;
  auto operator<=>(const ElfAddr&) const = default;
};

// A process, immune to pid reuse: the start time is field 22 of /proc/PID/stat, in clock ticks since boot.
struct TargetId {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  auto operator<=>(const TargetId&) const = default;
};

// A registered probe; unique for the daemon's life time, never reused.
enum class ProbeId : std::uint32_t {};
constexpr std::uint32_t number(ProbeId id) { return static_cast<std::uint32_t>(id); }

// A connection to the daemon; owns the probes it added. none: persistent probes, owned by nobody.
enum class ClientId : std::uint64_t { none = 0 };

}  // namespace probed

template <>
struct std::hash<probed::RemoteAddr> {
  std::size_t operator()(probed::RemoteAddr a) const noexcept { return std::hash<std::uint64_t>{}(a.value); }
};
