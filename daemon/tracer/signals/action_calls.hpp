// Signals' actions in the target, by way of a borrowed thread. Owning thread: the tracer thread.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>

#include "daemon/tracer/kernel/remote_syscall.hpp"
#include "daemon/tracer/signals/trap_action.hpp"
#include "daemon/tracer/text/address_space.hpp"
#include "daemon/tracer/tracee.hpp"

namespace probed::tracer {

class ActionCalls {
 public:
  ActionCalls(RemoteSyscalls& remote, AddressSpace& space) : remote_(remote), space_(space) {}

  // Whether the thread has not come back from a call in time, or has ended in it: it may have been made, or not.
  bool cut_short() const { return remote_.late() || remote_.exit_status(); }
  // Whether the thread may make no calls at all.
  bool refused() const { return remote_.refusal() != nullptr; }

  std::optional<Action> get(int signal) { return call(signal, nullptr); }
  // Puts one action in place of another. False: the program has set a third one meanwhile, and that stays.
  bool replace(int signal, const Action& expected, Action wanted) {
    std::optional<Action> replaced = call(signal, &wanted);
    if (replaced == expected) return true;
    for (int i = 0; i < 8 && replaced; ++i) {
      const Action theirs = *replaced;
      replaced = call(signal, &theirs);
      if (replaced == wanted) break;
      wanted = theirs;  // it has set yet another one in between
    }
    return false;
  }

 private:
  static constexpr std::uint64_t kSigsetSize = 8;

  // The action before; nullopt: the call can't be made.
  std::optional<Action> call(int signal, const Action* action) {
    if (!map_scratch()) return std::nullopt;
    const RemoteAddr in = space_.scratch(), out = in + sizeof(Action);
    Action before;
    if (action && !space_.memory().write(in, std::as_bytes(std::span(action, 1)))) return std::nullopt;
    const auto number = static_cast<std::uint64_t>(signal);
    const auto result = remote_.call(SYS_rt_sigaction, {number, action ? in.value : 0, out.value, kSigsetSize, 0, 0});
    if (!result || *result != 0) return std::nullopt;
    if (!space_.memory().read(out, std::as_writable_bytes(std::span(&before, 1)))) return std::nullopt;
    return before;
  }

  bool map_scratch() {
    const Mark mark = AddressSpace::mark(kPageSize - Mark::kSize);
    if (space_.scratch()) {
      std::array<std::uint8_t, Mark::kSize> now{};
      const RemoteAddr at = space_.scratch() + mark.offset;
      if (space_.memory().read(at, std::as_writable_bytes(std::span(now))) && now == mark.bytes) return true;
      space_.xol().forget_area(space_.scratch());
      space_.set_scratch({});
    }
    const auto page =
        remote_.call(SYS_mmap, {0, kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, ~0ULL, 0});
    if (!page || *page <= 0) return false;
    const RemoteAddr base{static_cast<std::uint64_t>(*page)};
    space_.xol().add_data(base, kPageSize, false, XolAreas::Access::data, mark);
    if (!space_.memory().write(base + mark.offset, std::as_bytes(std::span(mark.bytes)))) return false;
    space_.set_scratch(base);
    return true;
  }

  RemoteSyscalls& remote_;
  AddressSpace& space_;
};

// signals/actions_landing.cpp. The landing becomes SIGTRAP's action where that is the default one now; it goes before
// the program gets a SIGTRAP of its own, and is left behind before it is let go.
void install_landing(Process& process, ActionCalls& calls);
void remove_landing(Process& process, ActionCalls& calls);
void leave_landing(Process& process, ActionCalls& calls);
// Whether the action that has just been fetched is the landing. One that the kernel has reset (trap_action.hpp) becomes
// it again; that of a daemon that was killed and could not be recovered from, which knows nothing of our
// breakpoints, the default one.
bool note_landing(Process& process, ActionCalls& calls, std::optional<Action>& now);

}  // namespace probed::tracer
