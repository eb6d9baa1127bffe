// What the kernel's reset of SIGTRAP's action looks like, and what a thread's own /proc files say about SIGTRAP.
#include "daemon/tracer/signals/trap_action.hpp"

#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base/fd.hpp"

using namespace probed;
using namespace probed::tracer;

namespace {

constexpr std::uint64_t bit(int signal) { return 1ULL << (signal - 1); }

// SIGTRAP's action while it lives.
struct WithAction {
  explicit WithAction(void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    sigaction(SIGTRAP, &action, &old);
  }
  ~WithAction() { sigaction(SIGTRAP, &old, nullptr); }
  struct sigaction old {};
};

struct WithTrapBlocked {
  WithTrapBlocked() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    pthread_sigmask(SIG_BLOCK, &set, &old);
  }
  ~WithTrapBlocked() { pthread_sigmask(SIG_SETMASK, &old, nullptr); }
  sigset_t old{};
};

std::optional<Disposition> of_trap(const std::optional<Dispositions>& all) {
  return all ? std::optional((*all)[forced_index(SIGTRAP)]) : std::nullopt;
}

pid_t own_tid() { return static_cast<pid_t>(syscall(SYS_gettid)); }

}  // namespace

TEST_CASE("only a default action with all else as it was marked is taken for the kernel's reset") {
  const Action handler = marked({0x401000, SA_SIGINFO | 0x04000000, 0x402000, bit(SIGUSR1)});
  Action reset = handler;
  reset.handler = 0;
  CHECK(was_reset(reset, handler));
  CHECK_FALSE(was_reset(handler, handler));
  CHECK_FALSE(was_reset(unmarked(reset), handler));  // the program's own: it doesn't know the mark
  Action other = reset;
  other.mask = 0;
  CHECK_FALSE(was_reset(other, handler));
  CHECK_FALSE(was_reset(Action{}, marked(Action{})));  // it was at its default before
  CHECK(was_reset(marked(Action{}), marked(Action{1, 0, 0, 0})));
}

TEST_CASE("a mark changes nothing but a flag that means nothing for SIGTRAP, and goes without a trace") {
  const Action handler{0x401000, SA_SIGINFO | SA_NODEFER, 0x402000, bit(SIGUSR1)};
  CHECK(unmarked(marked(handler)) == handler);
  CHECK(marked(marked(handler)) == marked(handler));
  CHECK(marked(handler).flags == (handler.flags | SA_NOCLDWAIT));
  CHECK(marked(handler).mask == handler.mask);
}

TEST_CASE("a mask with all the other signals of instructions in it had SIGTRAP in it, one with some of them need not") {
  CHECK(blocked_with_all_others(~bit(SIGTRAP), SIGTRAP));
  CHECK_FALSE(blocked_with_all_others(~0ULL, SIGTRAP));  // it still has
  CHECK_FALSE(blocked_with_all_others(0, SIGTRAP));
  CHECK_FALSE(blocked_with_all_others(bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL), SIGTRAP));
  // What a database blocks in its critical sections.
  CHECK_FALSE(
      blocked_with_all_others(~(bit(SIGTRAP) | bit(SIGABRT) | bit(SIGILL) | bit(SIGFPE) | bit(SIGSEGV)), SIGTRAP));
}

TEST_CASE("the disposition that /proc shows is the one that is in force") {
  const pid_t self = own_tid();
  const UniqueFd stat(open_thread_stat(self));
  REQUIRE(stat);
  CHECK(of_trap(dispositions_of(self)) == Disposition::standard);
  {
    const WithAction handled([](int) {});
    CHECK(of_trap(dispositions(stat.get())) == Disposition::handled);
  }
  {
    const WithAction ignored(SIG_IGN);
    CHECK(of_trap(dispositions(stat.get())) == Disposition::ignored);
    CHECK(of_trap(dispositions_of(self)) == Disposition::ignored);
  }
  CHECK(of_trap(dispositions(stat.get())) == Disposition::standard);
  CHECK_FALSE(dispositions_of(0x3fffffff).has_value());
}

TEST_CASE("a blocked SIGTRAP is pending, but not on its way") {
  const WithAction handled([](int) {});
  const pid_t self = own_tid();
  CHECK_FALSE(signal_pending(self, SIGTRAP));
  {
    const WithTrapBlocked blocked;
    raise(SIGTRAP);
    CHECK(signal_pending(self, SIGTRAP));
    CHECK(blocked_by(self) == bit(SIGTRAP));
    CHECK_FALSE(signal_in_flight(self, SIGTRAP));
  }
  CHECK_FALSE(signal_pending(self, SIGTRAP));
  CHECK((blocked_by(self) & bit(SIGTRAP)) == 0);
}
