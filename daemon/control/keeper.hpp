// What outlives this daemon: probes and targets that are kept in files.
//
// Asio thread.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include "daemon/control/part.hpp"

namespace probed::control {

class Keeper : public Part {
 public:
  using Part::Part;

  // Requests: controller_impl.hpp says what they do.
  void keep_probes(Keeping keeping);
  void readopt(std::chrono::milliseconds limit, std::function<void()> done);
  // The daemon ends well: whatever is kept has done it no harm, and nothing more is kept.
  void end();

  // Writes what is kept of that process, or removes its file when nothing is; of very many probes only keep_all() does.
  // Where that fails, note_unkept() says so. No-op when nothing is kept at all.
  void keep(pid_t pid);
  void keep_all();
  // Adds to a persistent probe's notes why it won't outlive this daemon, if it won't.
  void note_unkept(ProbeView& view) const;
  // Where a persistent probe stands, for the next daemon to know the code again.
  void note_place(Probe& probe, const tracer::SitePlan& plan) const;
  // The probe is in place again, or waits for its code under our eyes: its time without a daemon is over.
  void note_watched(Probe& probe) const;

 private:
  // Writes this. Precondition: keep_probes() has been called, and end() hasn't.
  void keep(const KeptTarget& target);

  struct KeptFile {
    std::string path;
    std::size_t written = 0;       // hash of what stands there; 0: nothing
    std::string failure{};         // why nothing could be written; empty: it could, or hasn't been tried
    std::set<ProbeId> left_out{};  // what can't stand there
    std::uint64_t attempts = 0;
    std::optional<std::chrono::steady_clock::time_point> proven_at;  // when putting it back has done no harm
  };
  KeptProbe kept(const Probe& probe) const;
  std::map<pid_t, KeptTarget> kept_targets(std::optional<pid_t> pid) const;
  void forget_kept(pid_t pid);
  void look_at_kept();
  void look_at_kept_later(std::chrono::steady_clock::duration last_took);
  void refuse_kept(const FoundKept& found, const std::string& why);
  std::optional<Error> why_not_adoptable(const KeptTarget& kept) const;
  void enter(const KeptTarget& kept, std::uint64_t last_known);
  // Of that target's probes that are still to be put back.
  void give_up_awaited(pid_t pid, const Error& why, bool for_good, const std::function<bool(const Probe&)>& of_them);
  void adopt(FoundKept found, std::function<void()> done);
  void settle(const KeptTarget& kept, std::uint64_t last_known, const std::vector<Failed>& failed);
  void put_back(std::shared_ptr<const FoundKept> found, std::function<void()> done);

  std::map<pid_t, KeptFile> kept_;
  std::unique_ptr<boost::asio::steady_timer> keep_timer_, adoption_timer_;
};

}  // namespace probed::control
