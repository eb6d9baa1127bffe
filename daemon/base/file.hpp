// Whole small files, as /proc has them.
#pragma once

#include <cstddef>
#include <string>

namespace probed {

// Appends nothing on failure: 0 on success, else the errno of open(2) or read(2). Files longer than `limit` bytes give
// EFBIG. Interrupted reads are repeated.
int read_file(const std::string& path, std::string& content, std::size_t limit);
// The same of an open file, from where it stands.
int read_rest(int fd, std::string& content, std::size_t limit);
// The same from its beginning, without moving where it stands: for what others read, too. No limit.
int read_whole(int fd, std::string& content);

}  // namespace probed
