// A packet with a descriptor beside it, by a Unix socket of packets. unix(7), SCM_RIGHTS.
#pragma once

#include <cstddef>
#include <span>

#include "proto/base/fd.hpp"

namespace probed {

// Those of a packet that is one value.
template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// fd: -1: none. False: it wasn't sent.
bool send_packet(int socket, std::span<const std::byte> data, int fd);
// How many bytes came; < 0: an errno, negative. Doesn't wait.
std::ptrdiff_t receive_packet(int socket, std::span<std::byte> data, UniqueFd& fd);

}  // namespace probed
