#include "daemon/control/access.hpp"

#include <fmt/format.h>

#include "daemon/base/process.hpp"
#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"

namespace probed::control {

// Between the caller's check and the seize the process may have started another program, a set-uid one say. From the
// seize on, nothing planned for one program reaches the next (tracer::AttachResult).
Result<void> Access::check_still_allowed(ClientId who, pid_t pid) const {
  const auto client = registry_.clients.find(who);
  if (client != registry_.clients.end() && client->second->may_trace(pid)) return {};
  if (process::has_ended(pid))
    return Error{Reason::no_such_process, fmt::format("process {} has just ended", pid), "", {}};
  return Error{Reason::permission_denied,
               fmt::format("process {} has just become one that you may not trace", pid),
               "it has started another program, or changed its user; see `ps -o uid,comm -p` what it is now",
               {}};
}

// The program first: it is of this one's end or start that the look at the user could be out of date.
Result<void> Access::check_same_program(ClientId who, pid_t pid, const symbols::TargetSymbols& read) const {
  if (auto allowed = check_still_allowed(who, pid); !allowed) return allowed;
  const auto client = registry_.clients.find(who);
  if (client != registry_.clients.end() && client->second->user() == 0) return {};
  if (read.is_current()) return {};
  return Error{Reason::permission_denied,
               fmt::format("process {} has started another program meanwhile, or has ended", pid),
               "ask again",
               {}};
}

Error Access::client_has_gone() {
  return {Reason::internal, "the client has gone before its request was begun", "", {}};
}

// A set-user-ID program, one with capabilities or that may not be read. Nobody else could let it go on: that would be
// refused as everything else.
void Access::forget_denied(Target& target, const std::set<ClientId>& denied) {
  for (const ClientId id : denied) {
    target.interested.erase(id);
    target.attached_for.erase(id);
  }
  if (denied.contains(target.holder) || denied.contains(target.holds_execs)) parts_.attachments.forget_hold(target);
  if (target.attached_by && !registry_.owner_may_trace(*target.attached_by, target.id.pid)) target.attached_by.reset();
}

}  // namespace probed::control
