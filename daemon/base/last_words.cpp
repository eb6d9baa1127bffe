#include "daemon/base/last_words.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

namespace probed {
namespace {

char text[160];  // " (REASON)"
std::atomic<bool> said{false};

const char* reason_of(const std::exception_ptr& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    return "there is no memory left: ulimit -v? MemoryMax=?";
  } catch (const std::system_error& e) {
    return e.code().value() == EAGAIN ? "no thread can be made: ulimit -u? -v? TasksMax=?" : e.what();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
  }
  return "an error that nobody caught";
}

// What it throws on its way would bring it here again: abort() then.
[[noreturn]] void tell() {
  const std::exception_ptr thrown = std::current_exception();  // what() is its
  const char* const why = reason_of(thrown);
  if (!said.exchange(true)) {
    std::snprintf(text, sizeof text, " (%.150s)", why);
    char line[200];
    const int length = std::snprintf(line, sizeof line, "probed: critical: can't go on%s\n", text);
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line, static_cast<std::size_t>(length));
  }
  std::abort();
}

}  // namespace

void keep_last_words() { std::set_terminate(tell); }
const char* last_words() { return text; }

}  // namespace probed
