// Who may trace what. The daemon can ptrace everything; a client gets what it could ptrace itself.
//
// The rule is ptrace(2)'s "ptrace access mode checking" for PTRACE_MODE_ATTACH_REALCREDS, with the peer of the socket
// in the place of the caller:
//   1. root (uid 0 in the daemon's user namespace) may trace everything; the kernel judges the daemon's own attach;
//   2. else the real, effective and saved user ids of every thread must be the peer's, and likewise the group ids;
//   3. the process must be dumpable (see ProcessCredentials::file_owner);
//   4. it must have no permitted capabilities, because the peer is taken to have none;
//   5. it and the peer must live in the daemon's user namespace: capabilities in another mean something else;
//   6. Yama: ptrace_scope 1 leaves only descendants of the process that connected (exceptions granted by
//      PR_SET_PTRACER can't be seen from outside and are not honoured); 2 and 3 leave nothing.
// The daemon's privilege must not be a way around 6: with scope 1, one compromised program of a user must not read
// the memory of that user's key agent.
//
// Denials tell no more than /proc does: where it hides processes (hidepid), a process of another user and one that
// doesn't exist are refused in the same words.
//
// Thread: any; no state but the configuration.
#pragma once

#include <string_view>

#include "daemon/api/peer.hpp"
#include "daemon/api/procfs.hpp"
#include "proto/base/result.hpp"

namespace probed::api {

// Why not; none: it may.
enum class Denial : std::uint8_t {
  none,
  no_process,
  unmapped_identity,  // the peer's or target's id has no number in the daemon's user namespace
  other_user,
  other_group,
  not_dumpable,
  capabilities,
  user_namespace,
  yama_descendants,
  yama_admin,
};

// What the decision needs besides the two parties.
struct Surroundings {
  std::string user_namespace;  // the daemon's
  PtraceScope scope = PtraceScope::classic;
  bool descendant = false;  // the target descends from the peer's process; only looked at when scope is descendants
  std::optional<uid_t> overflow_uid;
  std::optional<gid_t> overflow_gid;
};
// Rules 2 to 6; pure.
Denial judge(const Peer& peer, const ProcessCredentials& target, const Surroundings& surroundings);

class Authorizer {
 public:
  explicit Authorizer(Procfs procfs = Procfs()) : procfs_(std::move(procfs)) {}

  // Errors: permission_denied with the remedy; no_such_process. For root neither is looked at: ok means "ask the
  // kernel".
  Result<void> may_trace(const Peer& peer, pid_t pid) const;
  // The same of a user whose connection has ended, and who was allowed to trace this very program once. Yama's descent
  // (6) was looked at then; there is no process that could be asked for it any more.
  Result<void> may_still_trace(uid_t user, gid_t group, pid_t pid) const;
  // The global switches: root, or the user the daemon itself runs as. Errors: permission_denied.
  Result<void> may_administer(const Peer& peer, std::string_view what) const;
  bool is_administrator(const Peer& peer) const;

  const Procfs& procfs() const { return procfs_; }

 private:
  Denial decide(const Peer& peer, pid_t pid, bool descended) const;
  Result<void> answer(const Peer& peer, pid_t pid, bool descended) const;
  bool descends(const Peer& peer, pid_t pid) const;
  Procfs procfs_;
};

}  // namespace probed::api
