// See authorize.hpp.
#include "daemon/api/authorize.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "daemon/base/out_of_descriptors.hpp"

namespace probed::api {
namespace {

struct Words {
  Denial denial;
  std::string_view why;  // "uid U may not trace process P: …"
  std::string_view hint;
};

constexpr std::string_view kAsRoot = "run this as root, or as the user whose process it is";

constexpr std::array kWords{
    Words{Denial::none, "", ""},
    Words{Denial::no_process, "", ""},
    Words{Denial::unmapped_identity, "one of the two has no user id in the daemon's user namespace",
          "use a daemon that runs outside of the container"},
    Words{Denial::other_user, "it belongs to another user, or one of its user ids does", kAsRoot},
    Words{Denial::other_group, "one of its group ids is not the caller's",
          "run this as root, or with the process's group as the primary one (newgrp)"},
    Words{Denial::not_dumpable,
          "it is not dumpable: it has changed its ids, runs a file that cannot be read, or asked for it (prctl(2), "
          "PR_SET_DUMPABLE)",
          "run this as root"},
    Words{Denial::capabilities, "it holds capabilities that the caller does not have", "run this as root"},
    Words{Denial::user_namespace, "it, or the caller, lives in another user namespace than the daemon",
          "run this as root outside of the container or sandbox"},
    Words{Denial::yama_descendants,
          "kernel.yama.ptrace_scope is 1, and it does not descend from the process that asked",
          "start it from the tracer (probectl trace -- CMD), run this as root, or have root set "
          "kernel.yama.ptrace_scope to 0"},
    Words{Denial::yama_admin, "kernel.yama.ptrace_scope leaves tracing to root",
          "run this as root, or have root set kernel.yama.ptrace_scope to 0 or 1"},
};

Error no_process(pid_t pid) {
  if (out_of_descriptors()) return no_descriptors(pid);
  return {Reason::no_such_process, "there is no process " + std::to_string(pid) + " that could be traced",
          "processes and their ids: ps -e"};
}

Error denied(const Peer& peer, pid_t pid, const Words& words) {
  return {Reason::permission_denied,
          "uid " + std::to_string(peer.uid) + " may not trace process " + std::to_string(pid) + ": " +
              std::string(words.why),
          std::string(words.hint)};
}

// Whether the target is somebody else's, whose existence alone may be secret.
bool foreign(Denial denial) {
  return denial == Denial::other_user || denial == Denial::unmapped_identity || denial == Denial::other_group;
}

Denial judge_thread(const Peer& peer, const ThreadCredentials& thread) {
  const auto is_user = [&](uid_t id) { return id == peer.uid; };
  const auto is_group = [&](gid_t id) { return id == peer.gid; };
  if (!std::ranges::all_of(thread.uids, is_user)) return Denial::other_user;
  if (!std::ranges::all_of(thread.gids, is_group)) return Denial::other_group;
  return Denial::none;
}

}  // namespace

Denial judge(const Peer& peer, const ProcessCredentials& target, const Surroundings& around) {
  // Every id without a number shows as the same overflow id: equal there does not mean the same user.
  if (peer.uid == around.overflow_uid || peer.gid == around.overflow_gid) return Denial::unmapped_identity;
  for (const ThreadCredentials& thread : target.threads)
    if (const Denial denial = judge_thread(peer, thread); denial != Denial::none) return denial;
  if (target.file_owner != peer.uid) return Denial::not_dumpable;
  if (target.user_namespace.empty() || target.user_namespace != around.user_namespace ||
      peer.user_namespace != around.user_namespace)
    return Denial::user_namespace;
  for (const ThreadCredentials& thread : target.threads)
    if (thread.permitted != 0) return Denial::capabilities;
  if (around.scope >= PtraceScope::admin_only) return Denial::yama_admin;
  if (around.scope == PtraceScope::descendants && !around.descendant) return Denial::yama_descendants;
  return Denial::none;
}

bool Authorizer::descends(const Peer& peer, pid_t pid) const {
  if (peer.pid <= 0) return false;
  // Twice the same, and the peer alive after: no link of the chain was a pid that changed hands while we read.
  const auto chain = procfs_.ancestry(pid);
  return std::ranges::find(chain, peer.pid) != chain.end() && procfs_.ancestry(pid) == chain && peer.alive();
}

Denial Authorizer::decide(const Peer& peer, pid_t pid, bool descended) const {
  const auto target = procfs_.credentials(pid);
  if (!target) return Denial::no_process;
  Surroundings around{procfs_.own_user_namespace(), procfs_.ptrace_scope(), descended, procfs_.overflow_uid(),
                      procfs_.overflow_gid()};
  if (around.scope == PtraceScope::descendants && !descended) around.descendant = descends(peer, pid);
  return judge(peer, *target, around);
}

Result<void> Authorizer::may_trace(const Peer& peer, pid_t pid) const { return answer(peer, pid, false); }

Result<void> Authorizer::may_still_trace(uid_t user, gid_t group, pid_t pid) const {
  return answer(Peer{user, group, 0, {}, procfs_.own_user_namespace()}, pid, true);
}

Result<void> Authorizer::answer(const Peer& peer, pid_t pid, bool descended) const {
  if (peer.uid == 0) return {};
  const Denial denial = decide(peer, pid, descended);
  if (denial == Denial::none) return {};
  if (denial == Denial::no_process) return no_process(pid);
  if (foreign(denial) && procfs_.visibility() == Visibility::own_only) return no_process(pid);
  return denied(peer, pid, kWords[static_cast<std::size_t>(denial)]);
}

bool Authorizer::is_administrator(const Peer& peer) const { return peer.uid == 0 || peer.uid == geteuid(); }

Result<void> Authorizer::may_administer(const Peer& peer, std::string_view what) const {
  if (is_administrator(peer)) return {};
  return Error{Reason::permission_denied,
               "uid " + std::to_string(peer.uid) + " may not use " + std::string(what) +
                   ": it concerns everybody's probes, and is for root and the daemon's own user",
               "run this as root; probe.enable and probe.disable (probectl enable, disable) switch single probes"};
}

}  // namespace probed::api
